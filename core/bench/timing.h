#pragma once
// How long work takes: once to warm up, then several times.

#include <functional>

namespace moe::bench {

struct Timing {
  double best_s = 0, median_s = 0, worst_s = 0;
};

Timing time_of(int64_t repeats, const std::function<void()>& work);

}  // namespace moe::bench
