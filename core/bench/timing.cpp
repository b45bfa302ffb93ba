#include "core/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace moe::bench {

OrderedJson to_json(const Timing& time) {
  return {{"best_ms", time.best_s * 1e3},
          {"median_ms", time.median_s * 1e3},
          {"worst_ms", time.worst_s * 1e3}};
}

Timing time_of(int64_t repeats, const std::function<void()>& work) {
  work();
  std::vector<double> seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], seconds.back()};
}

}  // namespace moe::bench
