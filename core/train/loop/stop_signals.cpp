#include "core/train/loop/stop_signals.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>

namespace moe::train {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Receives one of `signals`. Returns 0 if none arrives within `timeout`.
int receive(const sigset_t& signals, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const timespec time = {seconds.count(), (timeout - seconds).count()};
  return std::max(0, sigtimedwait(&signals, nullptr, &time));
}

// Delivers `signal`, which all other threads block, to this process.
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
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) {
      sigaddset(&watched_, signal);
      wake_signal_ = signal;
    }
  }
  pthread_sigmask(SIG_BLOCK, &watched_, &previous_mask_);
  if (wake_signal_ != 0) {
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }
}

StopSignals::~StopSignals() {
  if (watcher_.joinable()) {
    watcher_.request_stop();
    pthread_kill(watcher_.native_handle(), wake_signal_);
    watcher_.join();
  }
  while (receive(watched_, {}) != 0) {
  }
  if (!stop_requested_ && std::uncaught_exceptions() == 0) {
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  }
}

bool StopSignals::stop_requested() {
  is_request_seen_ = stop_requested_.load();
  return is_request_seen_;
}

void StopSignals::watch(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first_time;
  int first_signal = 0, num_later = 0;  // num_later: signals outside of kMergeWindow
  const auto is_unseen = [&] { return first_time && !is_polling_ && !is_request_seen_; };
  while (true) {
    const std::chrono::nanoseconds timeout =
        is_unseen() ? *first_time + kPollTimeout - Clock::now() : std::chrono::hours(1);
    const int signal = receive(watched_, timeout);
    if (stop.stop_requested()) {
      return;
    }
    const auto now = Clock::now();
    const bool is_later = first_time && now - *first_time >= kMergeWindow;
    if (signal != 0 && (!first_time || (is_later && !is_polling_ && is_request_seen_))) {
      first_time = now;
      first_signal = signal;
      is_request_seen_ = false;
      stop_requested_ = true;
    } else if (signal != 0 && is_later && is_polling_) {
      ++num_later;
      if (num_later > 1 || num_saving_ == 0) {
        deliver(signal);
      }
    }
    if (is_unseen() && now - *first_time >= kPollTimeout) {
      deliver(first_signal);
    }
  }
}

}  // namespace moe::train
