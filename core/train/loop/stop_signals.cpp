#include "core/train/loop/stop_signals.h"

#include <condition_variable>
#include <ctime>
#include <mutex>

namespace moe::train {
namespace {

bool is_any_pending(const sigset_t& signals) {
  sigset_t pending;
  sigpending(&pending);
  sigset_t both;
  sigandset(&both, &pending, &signals);
  return sigisemptyset(&both) == 0;
}

// Lets the signals through, here, where one stayed pending for all of kLongestWait.
void end_where_nobody_asks(const std::stop_token& stop, const sigset_t& signals) {
  constexpr std::chrono::milliseconds kPause{100};
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  for (auto waited = kPause * 0; waited < StopSignals::kLongestWait;) {
    stopped.wait_for(lock, stop, kPause, [] { return false; });
    if (stop.stop_requested()) {
      return;
    }
    waited = is_any_pending(signals) ? waited + kPause : kPause * 0;
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  watcher_ = std::jthread(
      [signals = watched_](const std::stop_token& stop) { end_where_nobody_asks(stop, signals); });
}

StopSignals::~StopSignals() {
  begin_work();
  const timespec no_wait = {0, 0};
  while (sigtimedwait(&watched_, nullptr, &no_wait) > 0) {
  }  // one that is pending was meant for the work that ends here
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::begin_work() {
  watcher_ = {};  // joined
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
