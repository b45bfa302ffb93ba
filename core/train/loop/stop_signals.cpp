#include "core/train/loop/stop_signals.h"

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <mutex>
#include <optional>

namespace moe::train {
namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP};

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

bool is_any_pending(const sigset_t& signals) {
  sigset_t pending;
  sigpending(&pending);
  sigset_t both;
  sigandset(&both, &pending, &signals);
  return sigisemptyset(&both) == 0;
}

bool consume_pending(const sigset_t& signals) {
  const timespec no_wait = {0, 0};
  return sigtimedwait(&signals, nullptr, &no_wait) > 0;
}

// Delivers `signal` to this process, which blocks it in all other threads.
void deliver(int signal) {
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
  kill(getpid(), signal);
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&watched_);
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) {
      sigaddset(&watched_, signal);
      has_watched_ = true;
    }
  }
  pthread_sigmask(SIG_BLOCK, &watched_, &previous_mask_);
  watcher_ = std::jthread([this](const std::stop_token& stop) { terminate_unless_polled(stop); });
}

StopSignals::~StopSignals() {
  end_watcher();
  while (consume_pending(watched_)) {
  }
  if (!stop_requested_ && std::uncaught_exceptions() == 0) {
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  }
}

void StopSignals::end_watcher() {
  watcher_.request_stop();
  if (is_polling_ && has_watched_) {  // receive_signals() is in sigwait()
    const auto* const signal = std::ranges::find_if(
        kStopSignals, [this](int candidate) { return sigismember(&watched_, candidate); });
    pthread_kill(watcher_.native_handle(), *signal);
  }
  watcher_.join();
}

bool StopSignals::stop_requested() {
  if (!is_polling_ && !stop_requested_ && consume_pending(watched_)) {
    stop_requested_ = true;
  }
  return stop_requested_;
}

void StopSignals::start_polling() {
  if (is_polling_) {
    return;
  }
  end_watcher();
  is_polling_ = true;
  watcher_ = std::jthread([this](const std::stop_token& stop) { receive_signals(stop); });
}

// First phase: terminates the process if a signal has been pending for kPollTimeout.
void StopSignals::terminate_unless_polled(const std::stop_token& stop) const {
  constexpr std::chrono::milliseconds kPause{100};
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  for (auto waited = kPause * 0; waited < kPollTimeout;) {
    stopped.wait_for(lock, stop, kPause, [] { return false; });
    if (stop.stop_requested()) {
      return;
    }
    waited = is_any_pending(watched_) ? waited + kPause : kPause * 0;
  }
  pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
}

// Second phase: counts signals.
void StopSignals::receive_signals(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first;
  if (stop_requested_) {
    first = Clock::now();
  }
  int num_later = 0;  // outside of kMergeWindow
  while (has_watched_) {
    int signal = 0;
    sigwait(&watched_, &signal);
    if (stop.stop_requested()) {
      return;
    }
    if (!first) {
      first = Clock::now();
      stop_requested_ = true;
    } else if (Clock::now() - *first >= kMergeWindow) {
      ++num_later;
      if (num_later > 1 || num_saving_ == 0) {
        deliver(signal);
      }
    }
  }
}

}  // namespace moe::train
