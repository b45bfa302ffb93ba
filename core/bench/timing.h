#pragma once
// How long work takes, by one clock: with one thread the process's CPU seconds, which a busy
// machine does not stretch; with more, and on a GPU, the wall's.

#include <c10/core/Device.h>

#include <ctime>
#include <functional>
#include <vector>

#include "core/base/json.h"

namespace moe::bench {

double read_clock_s(clockid_t clock);
bool times_cpu();      // one thread
double clock_now_s();  // differences of it are seconds
// The same of work on `device`: of a GPU the wall's, once all that was launched is done.
double clock_now_s(c10::Device device);

struct Timing {
  double best_s = 0, median_s = 0, worst_s = 0;
};

Timing timing_of(std::vector<double> seconds);  // at least one
OrderedJson to_json(const Timing& time);        // best_ms, median_ms, worst_ms

// Of `repeats` calls, after one to warm up. Work on a GPU is waited for: the host only launches it.
Timing time_of(int64_t repeats, const std::function<void()>& work, c10::Device device = c10::kCPU);

}  // namespace moe::bench
