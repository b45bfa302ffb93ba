#pragma once
// SIGINT and SIGTERM as a question asked between steps instead of a handler that interrupts: while
// this object lives they are blocked and stay pending; once one was answered, the next ends the
// process at once, as is its default. Make it before LibTorch starts its threads,
// which inherit the mask.
//
// Before the first step nothing can be lost, and a question may never come: a file that somebody
// named may be a pipe that nobody writes to, or lie on a network that does not answer. Until
// begin_work() a signal that no question answers within kLongestWait ends the process.

#include <chrono>
#include <csignal>
#include <thread>

namespace moe::train {

class StopSignals {
 public:
  static constexpr std::chrono::seconds kLongestWait{4};

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested();   // whether one came; true for ever after
  void begin_work();  // a signal waits for the next question from now on, however late it comes

 private:
  sigset_t watched_ = {}, before_ = {};
  bool requested_ = false;
  std::jthread watcher_;  // until work begins
};

}  // namespace moe::train
