#pragma once
// Ends the process with a message if a scope takes too long: deadlocked ranks cannot be woken.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace moe::test {

class TimeLimit {
 public:
  explicit TimeLimit(int seconds)
      : watch_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (!ended_.wait_for(lock, std::chrono::seconds(seconds), [this] { return is_over_; })) {
            std::fprintf(stderr, "still running after %d seconds: ranks hang\n", seconds);
            std::_Exit(1);
          }
        }) {}
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    ended_.notify_all();
    watch_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread watch_;
};

}  // namespace moe::test
