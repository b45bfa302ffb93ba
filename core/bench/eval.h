#pragma once
// Scoring as `moe eval` does it, beside what the machine multiplies in the same run: the roof is
// at::mm at the model's shapes, on as many rows as a forward has.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/bench/timing.h"
#include "core/model/llama/compute.h"
#include "core/route/router_override.h"

namespace moe::bench {

struct EvalSettings {
  std::filesystem::path model;
  std::vector<std::string> tasks;  // names of eval/tasks.h; empty = synthetic questions
  std::filesystem::path data;
  std::optional<int64_t> limit;  // questions of each task; of synthetic ones 60
  int64_t batch_tokens = 0;      // 0 = auto
  int64_t group_tokens = 4096;
  int64_t repeats = 3;  // after one to warm up
  route::RouterRequest router;
  c10::Device device = c10::kCPU;
  model::Precision precision = model::Precision::kF32;
  bool force_memory = false;  // load the model although memory will be short
  bool parts = false;         // also say where the time goes; on the CPU
};

// A part of scoring (parts.h), or what comes before it.
struct EvalPart {
  std::string name;
  double seconds = 0;  // of one scoring
  double flop = 0;
  double roof_s = 0;  // the least that at::mm takes for it, where it multiplies
  int64_t calls = 0;
};

struct EvalReport {
  std::string name;       // a task, or "letters" and "spans"
  int64_t questions = 0;  // with a score for each choice
  int64_t requests = 0;
  int64_t tokens_asked = 0;     // inputs of all requests, each by itself
  int64_t tokens_computed = 0;  // what is shared once
  int64_t head_rows = 0;        // tokens whose successor is scored
  int64_t forwards = 0;
  std::string router;                // empty for a dense model
  std::optional<double> drop_share;  // of the requests to experts, where capacity drops some
  double flop = 0;                   // of products with weights; attention's are not counted
  Timing scoring;                    // the requests, ready as tokens
  Timing roof;                       // the same products by at::mm, each a matrix
  uint64_t peak_bytes = 0;           // of the process, by the end of the scoring
  // Where they were asked for: the longest first, and "the rest" of the scoring. Tokenising is no
  // part of it.
  std::vector<EvalPart> parts;
  double tokenising_s = 0;  // of a task's texts; 0 of synthetic questions
  double seconds_of_parts() const;
};

// UserError: what loading the folder and the tasks say; a task whose answers are generated.
std::vector<EvalReport> bench_eval(const EvalSettings& settings);

OrderedJson to_json(const EvalReport& report);

}  // namespace moe::bench
