#pragma once
// Where the time of some work goes on the CPU: the parts of a model name themselves
// (kernels/ops/recorded_part.h), and each counts by itself, without the parts that it calls.

#include <functional>
#include <map>
#include <string>

#include "core/base/json.h"

namespace moe::bench {

struct Part {
  double seconds = 0;  // by the clock of timing.h
  double flop = 0;     // floating-point operations, where it says how many it makes
  int64_t calls = 0;
};

// Of parts that the calling thread enters. Not at the same time as another of these.
std::map<std::string, Part> own_parts(const std::function<void()>& work);

}  // namespace moe::bench
