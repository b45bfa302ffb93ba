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
// background jobs of a shell) stays ignored.
//
// Before start_polling() the process may be blocked (for example, on a pipe without a writer): a
// signal that stop_requested() does not consume within kPollTimeout terminates it. After
// start_polling():
//   - the first signal makes stop_requested() return true;
//   - signals within kMergeWindow of it are duplicates (a launcher and a terminal may both send
//   one);
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

  bool stop_requested();  // true once a signal has been received
  void start_polling();   // further calls have no effect
  // Mark the time in which a checkpoint is written. Calls may nest.
  void begin_saving() { ++num_saving_; }
  void end_saving() { --num_saving_; }

 private:
  void end_watcher();
  void terminate_unless_polled(const std::stop_token& stop) const;
  void receive_signals(const std::stop_token& stop);

  sigset_t watched_ = {}, previous_mask_ = {};
  bool has_watched_ = false;  // false if all three are ignored
  bool is_polling_ = false;
  std::atomic<bool> stop_requested_{false};
  std::atomic<int> num_saving_{0};
  std::jthread watcher_;
};

}  // namespace moe::train
