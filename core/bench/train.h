#pragma once
// Steps of training as `moe train` makes them, on rows of random tokens: tokens a second, share of
// the machine's roof in the same run, the parts of a step, rows by kind, memory.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/bench/environment.h"
#include "core/bench/gemm.h"
#include "core/bench/thread_time.h"
#include "core/model/convert/upcycle_request.h"
#include "core/model/llama/compute.h"
#include "core/route/counters.h"
#include "core/route/router_override.h"

namespace moe::bench {

// Mixtures of 8 experts in every layer, random weights: S (35 M parameters: D 256, F 704, 4 layers)
// and M (176 M: D 512, F 1376, 8 layers), 8 heads, vocabulary 32000.
inline const std::vector<std::string>& synthetic_models() {
  static const std::vector<std::string> names = {"S", "M"};
  return names;
}

// config.json of one of them before it becomes a mixture.
OrderedJson synthetic_config(const std::string& name);

struct TrainBenchSettings {
  std::string model = "S";  // a folder, or one of synthetic_models()
  model::UpcycleRequest upcycle;
  route::RouterRequest router;
  model::Precision precision = model::Precision::kF32;
  int64_t rows = 2, length = 512;  // B, S of a step
  int64_t warmup = 2, repeats = 7, profiled = 2;
  int64_t one_thread_repeats = 3;  // where there are several threads
  int counted_repeats = 3;         // likewise, of steps counted by each thread's processor time
  c10::Device device = c10::kCPU;
  bool force_memory = false;  // load the model although memory will be short
};

// The same steps by one thread, in the same run.
struct OneThread {
  double step_s = 0;  // wall, median; 0: not measured
  std::map<std::string, double> parts_s;
};

struct TrainReport {
  std::string router;  // empty: dense
  int threads = 1;
  int64_t parameters = 0, tokens = 0;
  double load_s = 0;      // of the folder into f32, once; a synthetic one is written first
  Timing step;            // timing.h
  double wall_s = 0;      // of a step, median
  double cpu_s = 0;       // of a step, mean over the measured ones, all threads
  double flop = 0;        // of a step
  double roof_flops = 0;  // at::mm at the model's shapes, in this run
  double faults = 0;      // minor page faults of a step, mean
  uint64_t peak_bytes = 0;
  double first_loss = 0, last_loss = 0;
  std::map<std::string, double> parts_s;  // of a step; forward and backward together
  OneThread one_thread;                   // with several threads on as many processors
  // With several threads on as many processors: by 1, `threads`, 8 and 16 of them.
  std::vector<CountedWork> counted_steps;
  route::CounterValues counted;  // of the last step, all layers

  const CountedWork* counted_by(int its_threads) const;  // null: it was not counted
};

// UserError: what loading the folder and its router say.
TrainReport bench_train(const TrainBenchSettings& settings);

OrderedJson to_json(const TrainBenchSettings& settings);
OrderedJson to_json(const TrainReport& report);

}  // namespace moe::bench
