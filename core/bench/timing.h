#pragma once
// How long work takes: once to warm up, then several times.

#include <functional>

#include "core/base/json.h"

namespace moe::bench {

struct Timing {
  double best_s = 0, median_s = 0, worst_s = 0;
};

// In milliseconds.
OrderedJson to_json(const Timing& time);

Timing time_of(int64_t repeats, const std::function<void()>& work);

}  // namespace moe::bench
