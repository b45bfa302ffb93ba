#pragma once
// A folder becomes a model, again and again in one process with the file cache warm: what is timed
// is not the disk. Once in f32, as training holds it, which is widening and laying out tensors; and
// once mapped, as evaluation and generation hold it (Storage::kStored), which is reading headers.

#include <filesystem>

#include "core/bench/timing.h"

namespace moe::bench {

struct Loading {
  uint64_t bytes = 0;      // of the weights: in memory in f32, or in the files
  double first_s = 0;      // the first load of its kind in the process, into new memory
  Timing load;             // those after it
  uint64_t anonymous = 0;  // bytes at most above those before, one model being loaded
};

struct LoadReport {
  Loading mapped, f32;
  // A mapped model is loaded and its logits after one token computed, for the first time.
  double first_token_s = 0;
};

// UserError: what loading the folder says; memory is short and `force_memory` is not said.
LoadReport bench_load(const std::filesystem::path& folder, int64_t repeats,
                      bool force_memory = false);

OrderedJson to_json(const LoadReport& report);

}  // namespace moe::bench
