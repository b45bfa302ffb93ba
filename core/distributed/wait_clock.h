#pragma once
// How long this process has waited for others. A process that was stopped (Ctrl-Z, SIGSTOP) has
// not waited meanwhile, and neither have the others of its run, which the same signal stopped: a
// gap between two looks that is longer than kStandstill counts as kPause, the usual gap.

#include <chrono>

namespace moe::distributed {

inline std::chrono::duration<double> since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::steady_clock::now() - begin;
}

class WaitClock {
 public:
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds kStandstill{0.7}, kPause{0.25};

  // Seconds waited since the construction. Whoever waits looks at least once a kPause.
  Seconds look() {
    const auto now = std::chrono::steady_clock::now();
    const Seconds gap = now - last_;
    waited_ += gap > kStandstill ? kPause : gap;
    last_ = now;
    return waited_;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  Seconds waited_{0};
};

}  // namespace moe::distributed
