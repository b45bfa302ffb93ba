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

// Receives one of `signals`, waiting up to `timeout_ns`. Returns 0 if none arrives.
int receive(const sigset_t& signals, long timeout_ns) {
  const timespec timeout = {0, timeout_ns};
  return std::max(0, sigtimedwait(&signals, nullptr, &timeout));
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
    }
  }
  pthread_sigmask(SIG_BLOCK, &watched_, &previous_mask_);
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

StopSignals::~StopSignals() {
  watcher_.request_stop();
  watcher_.join();
  while (receive(watched_, 0) != 0) {
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
  constexpr long kIntervalNs = 20'000'000;  // between checks of `stop` and the timeout
  std::optional<Clock::time_point> first_time;
  int first_signal = 0, num_later = 0;  // num_later: signals outside of kMergeWindow
  while (!stop.stop_requested()) {
    const int signal = receive(watched_, kIntervalNs);
    const auto now = Clock::now();
    if (signal != 0 && !first_time) {
      first_time = now;
      first_signal = signal;
      stop_requested_ = true;
    } else if (signal != 0 && now - *first_time >= kMergeWindow) {
      ++num_later;
      if (num_later > 1 || num_saving_ == 0) {
        deliver(signal);
      }
    }
    if (first_time && !is_polling_ && !is_request_seen_ && now - *first_time >= kPollTimeout) {
      deliver(first_signal);
    }
  }
}

}  // namespace moe::train
