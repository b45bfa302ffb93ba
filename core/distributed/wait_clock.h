#pragma once
// How long this process has waited for others. A process that was stopped (Ctrl-Z, SIGSTOP) has
// not waited meanwhile, and neither have the others of its run, which the same signal stopped: time
// that passes between two looks counts up to kMostCounted.

#include <algorithm>
#include <chrono>

namespace moe::distributed {

class WaitClock {
 public:
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds kMostCounted{2};

  // Seconds waited since the construction. Whoever waits looks more often than kMostCounted.
  Seconds look() {
    const auto now = std::chrono::steady_clock::now();
    const Seconds passed = now - last_;
    has_stood_still_ = passed > kMostCounted;
    waited_ += std::min(passed, kMostCounted);
    last_ = now;
    return waited_;
  }
  // Whether the time before the last look was too long to be counted.
  bool has_stood_still() const { return has_stood_still_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  Seconds waited_{0};
  bool has_stood_still_ = false;
};

}  // namespace moe::distributed
