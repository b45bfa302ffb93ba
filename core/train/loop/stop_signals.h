#pragma once
// SIGINT and SIGTERM as a question asked between steps instead of a handler that interrupts: while
// this object lives they are blocked and stay pending; once one was answered, the next ends the
// process at once, as is its default. Make it before LibTorch starts its threads,
// which inherit the mask.

#include <csignal>

namespace moe::train {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested();  // whether one came; true for ever after

 private:
  sigset_t watched_ = {}, before_ = {};
  bool requested_ = false;
};

}  // namespace moe::train
