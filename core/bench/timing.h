#pragma once
// Clocks, repeated timings and process statistics of the benchmarks.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::bench {

double wall_s();

// Returns the seconds of the benchmark clock: CPU time of the process if one thread computes, since
// other load on the machine does not stretch it; otherwise wall time. On a GPU, waits for its
// queued work and returns wall time.
double clock_s(c10::Device device = c10::kCPU);

struct Timing {
  double median_s = 0, best_s = 0, worst_s = 0;
};

// Returns the median and the extremes of `seconds`, which must not be empty.
Timing make_timing(std::vector<double> seconds);

// Calls `work` once to warm up, then times `repeats` calls.
Timing time_calls(int64_t repeats, const std::function<void()>& work,
                  c10::Device device = c10::kCPU);

// Returns {median_ms, best_ms, worst_ms}.
OrderedJson to_json(const Timing& timing);

// The same with the rate of `flop` floating-point operations and the share of `roof` that is
// reached, both at the medians.
OrderedJson to_json(const Timing& timing, double flop, const Timing& roof);

// Runs `work` and returns the milliseconds of each part of the model (core/model/llama/timeline.h).
OrderedJson time_parts(const std::function<void()>& work, c10::Device device);

// Returns the versions, machine, threads and date of a measurement on `device`.
OrderedJson environment(const std::string& benchmark, c10::Device device);

// Returns the most bytes that this process has held so far: tensors on the GPU, or resident memory.
uint64_t peak_bytes(c10::Device device);

// Resident bytes of this process that no file backs; 0 if the system does not report them.
uint64_t anonymous_bytes();

}  // namespace moe::bench
