#pragma once
// Benchmarks of `moe bench`: a settings struct and a function each. A function returns its report,
// a JSON object in the order of printing; keys end in their unit. Speeds are compared with a roof,
// the speed of simple operations on the same machine in the same run. All functions throw UserError
// before the first timing if the settings do not fit the model or the machine.

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/distributed/launch.h"
#include "core/eval/runner.h"
#include "core/model/config/compute.h"
#include "core/route/router_override.h"
#include "core/upcycle/upcycle.h"

namespace moe::bench {

struct LayerSettings {
  std::vector<std::string> routers = {"top1", "top1+ir+fr"};
  std::string cf;  // capacity factor of all routers; empty: as in `routers`
  int64_t tokens = 4096, width = 1024, inner = 2816, experts = 8;  // T, D, F, E
  std::optional<int64_t> ep_ranks;                                 // W; default E
  double skew = 0;  // adds -skew * j to the logits of expert j, so that loads differ
  int64_t repeats = 7;
  bool use_bf16 = false;    // products in bf16, else fp32
  bool times_layer = true;  // false: only routing and products
};

// Times a MoE layer on random tokens, forward and backward, for each router: the layer, its routing
// and its expert products. The roof is the experts' products by at::mm with all rows in one matrix.
OrderedJson bench_layer(const LayerSettings& settings, c10::Device device);

struct GemmSettings {
  std::string model = "S";  // a folder or a synthetic model (timing.h)
  int64_t tokens = 1024;    // of a micro-batch; each is routed to two experts
  int64_t repeats = 7;
  bool use_bf16 = false;  // products in bf16, else fp32
};

// Times every product of a training step by at::mm and by our own GEMM.
OrderedJson bench_gemm(const GemmSettings& settings, c10::Device device);

struct TrainSettings {
  std::string model = "S";  // a folder or a synthetic model (timing.h)
  model::UpcycleRequest upcycle;
  route::RouterRequest router;
  model::Precision precision = model::Precision::kF32;
  int64_t rows = 2, length = 512;  // B, S of a step
  int64_t warmup = 2, repeats = 7;
  bool force_memory = false;
};

// Times training steps on random tokens. The roof is the step's products by at::mm.
OrderedJson bench_train(const TrainSettings& settings, c10::Device device);

struct EvalSettings {
  // Without tasks: synthetic requests, 60 by default. bench_eval() sets its precision and device.
  eval::EvalSettings eval;
  std::optional<model::Precision> precision;  // default: model::inference_precision()
  int64_t repeats = 3;
  bool parts = false;  // also time the parts of the model (timing.h)
};

// Times the scoring of tokenized requests, as in `moe eval`. Synthetic requests are random tokens
// with four choices: "letters" scores 1 token after a context of 48-512 (like MMLU), "spans" scores
// 2-64 after 16-256 (like HellaSwag). The roof is the products of the forward passes by at::mm.
OrderedJson bench_eval(const EvalSettings& settings, c10::Device device);

struct GenerateSettings {
  std::filesystem::path model;
  int64_t rows = 1;            // texts at once
  int64_t prompt_tokens = 16;  // random
  int64_t tokens = 64;         // generated per text, at least 2
  int64_t repeats = 3;
  std::optional<model::Precision> precision;
  bool force_memory = false;
};

// Times a decoding step, one token of every text. A step reads each active weight once, so the roof
// is the memory bandwidth of the threads.
OrderedJson bench_generate(const GenerateSettings& settings);

struct LoadSettings {
  std::filesystem::path model;
  int64_t repeats = 5;  // after a first load
  bool force_memory = false;
};

// Times loading a folder from the page cache: as a copy in f32 (training) and mapped (inference).
OrderedJson bench_load(const LoadSettings& settings);

struct UpcycleSettings {
  std::filesystem::path dense;
  model::UpcycleSettings upcycle;  // `out` is created, then removed
  int64_t repeats = 3;
};

// Times upcycling and plain writes of as many bytes to the same disk, both synced. They alternate
// every gigabyte, so that other load on the disk slows both.
OrderedJson bench_upcycle(const UpcycleSettings& settings);

struct CommSettings {
  uint64_t max_bytes = uint64_t{64} << 20;  // of one rank's tensor; sizes are 64, 512, 4096, ...
  int64_t repeats = 7;
  distributed::RankSettings ranks;  // on_cuda is set by bench_comm()
};

// Times each collective by tensor size; the smallest all-to-all gives the latency of a link, the
// largest its bandwidth. Starts the ranks (distributed::run_on_ranks); only rank 0 returns a
// report.
std::optional<OrderedJson> bench_comm(const CommSettings& settings, c10::Device device);

}  // namespace moe::bench
