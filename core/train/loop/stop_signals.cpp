#include "core/train/loop/stop_signals.h"

#include <ctime>

namespace moe::train {

StopSignals::StopSignals() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &watched_, &before_);
}

StopSignals::~StopSignals() {
  const timespec no_wait = {0, 0};
  while (sigtimedwait(&watched_, nullptr, &no_wait) > 0) {
  }  // one that is pending was meant for the work that ends here
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool StopSignals::requested() {
  const timespec no_wait = {0, 0};
  if (!requested_ && sigtimedwait(&watched_, nullptr, &no_wait) > 0) {
    requested_ = true;
    pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);  // the next one ends the process at once
  }
  return requested_;
}

}  // namespace moe::train
