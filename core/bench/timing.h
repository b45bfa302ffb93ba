#pragma once
// How long work takes: once to warm up, then several times.

#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "core/base/json.h"

namespace moe::bench {

struct Timing {
  double best_s = 0, median_s = 0, worst_s = 0;
};

Timing timing_of(std::vector<double> seconds);  // at least one
OrderedJson to_json(const Timing& time);        // best_ms, median_ms, worst_ms

// Work on a card is waited for, and timed by the wall: the host only launches it.
Timing time_of(int64_t repeats, const std::function<void()>& work, c10::Device device = c10::kCPU);

}  // namespace moe::bench
