#pragma once
// Text, token by token, as `moe generate` and generation tasks make it: a token of one text reads
// every active weight once, so it cannot take less than the machine's reading of as many bytes,
// which is measured in the same run.

#include <filesystem>

#include "core/base/json.h"
#include "core/bench/timing.h"
#include "core/model/llama/compute.h"

namespace moe::bench {

struct GenerateBenchSettings {
  std::filesystem::path model;
  int64_t rows = 1;            // texts at once
  int64_t prompt_tokens = 16;  // random ones
  int64_t tokens = 64;         // new ones of each text
  int64_t repeats = 3;         // after one to warm up
  model::Precision precision = model::Precision::kF32;
  bool force_memory = false;  // load the model although memory will be short
};

struct GenerateReport {
  Timing step;                  // a token of every row, the prompts' not counted
  int64_t active_bytes = 0;     // of the matrices that a token is multiplied with, as stored
  double read_bytes_per_s = 0;  // of memory, by this run's threads
  // The reading of the active weights as a share of a step.
  double share_of_read_rate() const;
};

// UserError: what loading the folder says; a window that is too short.
GenerateReport bench_generate(const GenerateBenchSettings& settings);

OrderedJson to_json(const GenerateBenchSettings& settings);
OrderedJson to_json(const GenerateReport& report);

}  // namespace moe::bench
