#pragma once
// Graceful shutdown on SIGINT, SIGTERM and SIGHUP: the signals are blocked in all threads, and the
// run polls for them between steps, so that it can save a checkpoint before it exits.

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace moe::train {

// Blocks the signals while alive. Construct it before any other thread of the process starts,
// because threads inherit the signal mask. A signal that the process was started to ignore (nohup,
// background jobs of a shell) stays ignored. Another one makes stop_requested() return true.
// Signals within kMergeWindow of it are duplicates: a launcher and a terminal may both send one.
//
// Before start_polling() the process may be blocked, for example on a pipe without a writer. A
// signal terminates it if stop_requested() is not called within kPollTimeout. After
// start_polling():
//   - a second signal terminates the process at once, unless a checkpoint is being written;
//   - a third signal terminates the process at once.
// stop_requested() and start_polling() are called from one thread, the others from any.
class StopSignals {
 public:
  static constexpr std::chrono::seconds kPollTimeout{4};
  static constexpr std::chrono::seconds kMergeWindow{2};

  StopSignals();
  // Discards pending signals and restores the signal mask. After a stop request and while an
  // exception ends the command the signals stay blocked: duplicates may arrive until the exit.
  ~StopSignals();

  bool stop_requested();  // returns true once a signal has been received
  void start_polling() { is_polling_ = true; }
  // Mark the time in which a checkpoint is written. Calls may nest.
  void begin_saving() { ++num_saving_; }
  void end_saving() { --num_saving_; }

 private:
  void watch(const std::stop_token& stop);

  sigset_t watched_ = {}, previous_mask_ = {};
  int wake_signal_ = 0;  // one of watched_, for the end of the watcher; 0: all are ignored
  std::atomic<bool> stop_requested_{false}, is_request_seen_{false}, is_polling_{false};
  std::atomic<int> num_saving_{0};
  std::jthread watcher_;
};

}  // namespace moe::train
