#include "core/bench/timing.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace moe::bench {

double read_clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool times_cpu() { return at::get_num_threads() == 1; }

double clock_now_s() {
  return read_clock_s(times_cpu() ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

double clock_now_s(c10::Device device) {
  if (device.is_cpu()) {
    return clock_now_s();
  }
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return read_clock_s(CLOCK_MONOTONIC);
}

Timing timing_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], seconds.back()};
}

OrderedJson to_json(const Timing& time) {
  return {{"best_ms", time.best_s * 1e3},
          {"median_ms", time.median_s * 1e3},
          {"worst_ms", time.worst_s * 1e3}};
}

Timing time_of(int64_t repeats, const std::function<void()>& work, c10::Device device) {
  work();
  std::vector<double> seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    const double start = clock_now_s(device);
    work();
    seconds.push_back(clock_now_s(device) - start);
  }
  return timing_of(std::move(seconds));
}

}  // namespace moe::bench
