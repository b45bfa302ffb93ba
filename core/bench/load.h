#pragma once
// Reading a folder into a model in memory, again and again in one process with the file cache warm:
// what is timed is widening and laying out tensors, not the disk.

#include <filesystem>

#include "core/bench/timing.h"

namespace moe::bench {

struct LoadReport {
  uint64_t bytes = 0;      // of the weights in memory, f32
  double first_s = 0;      // the first load of the process, whose memory is new
  Timing load;             // those after it
  uint64_t anonymous = 0;  // bytes at most above those before, one model being loaded
};

// UserError: what loading the folder says.
LoadReport bench_load(const std::filesystem::path& folder, int64_t repeats);

OrderedJson to_json(const LoadReport& report);

}  // namespace moe::bench
