#include "core/train/loop/stop_signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/catch.h"

using moe::train::StopSignals;

namespace {

constexpr std::chrono::milliseconds kMoment{200};
constexpr auto kAfterWindow = StopSignals::kMergeWindow + kMoment;

void send(int signal, std::chrono::milliseconds wait = kMoment) {
  ::kill(::getpid(), signal);
  std::this_thread::sleep_for(wait);
}

// Runs `body` in a child with the default actions. Returns its exit code, or minus the signal that
// ended it.
int run_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      ::signal(signal, SIG_DFL);  // not the test framework's handlers
    }
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// run_in_child() with an object that polls.
int run_polling(const std::function<int(StopSignals&)>& body) {
  return run_in_child([&] {
    StopSignals signals;
    signals.start_polling();
    return body(signals);
  });
}

}  // namespace

TEST_CASE("a signal is pending until it is polled, and is remembered", "[train]") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const bool is_polling : {false, true}) {
      CHECK(run_in_child([=] {
              StopSignals signals;
              if (is_polling) {
                signals.start_polling();
              }
              if (signals.stop_requested()) {
                return 1;
              }
              send(signal);
              return signals.stop_requested() && signals.stop_requested() ? 0 : 2;
            }) == 0);
    }
  }
}

TEST_CASE("a signal that was not polled is discarded with the object", "[train]") {
  CHECK(run_in_child([] {
          {
            const StopSignals signals;
            send(SIGINT);
          }
          StopSignals later;
          return later.stop_requested() ? 1 : 0;
        }) == 0);
}

TEST_CASE("before polling starts, a signal that is not polled ends the process", "[train]") {
  const auto wait = StopSignals::kPollTimeout + std::chrono::seconds(2);
  CHECK(run_in_child([&] {
          const StopSignals signals;
          send(SIGHUP, wait);
          return 0;
        }) == -SIGHUP);
  CHECK(run_polling([&](StopSignals& signals) {
          send(SIGHUP, wait);
          return signals.stop_requested() ? 3 : 4;
        }) == 3);
}

TEST_CASE("signals within the merge window of the first are one, a later one ends the process",
          "[train]") {
  CHECK(run_polling([](StopSignals& signals) {
          send(SIGTERM);
          send(SIGINT);
          send(SIGTERM, kAfterWindow);
          return signals.stop_requested() ? 3 : 4;
        }) == 3);
  CHECK(run_polling([](StopSignals&) {
          send(SIGTERM, kAfterWindow);
          send(SIGINT);
          return 3;
        }) == -SIGINT);
}

TEST_CASE("while a checkpoint is written the second signal waits and the third ends the process",
          "[train]") {
  for (const bool has_third : {false, true}) {
    CHECK(run_polling([=](StopSignals& signals) {
            signals.begin_saving();
            send(SIGTERM, kAfterWindow);
            send(SIGTERM);
            if (has_third) {
              send(SIGINT);
            }
            return 3;
          }) == (has_third ? -SIGINT : 3));
  }
}

TEST_CASE("a signal that is ignored at the start stays ignored", "[train]") {
  for (const bool is_polling : {false, true}) {
    CHECK(run_in_child([=] {
            ::signal(SIGHUP, SIG_IGN);
            StopSignals signals;
            if (is_polling) {
              signals.start_polling();
            }
            send(SIGHUP);
            if (signals.stop_requested()) {
              return 1;
            }
            send(SIGTERM);
            return signals.stop_requested() ? 0 : 2;
          }) == 0);
    CHECK(run_in_child([=] {
            for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
              ::signal(signal, SIG_IGN);
            }
            StopSignals signals;
            if (is_polling) {
              signals.start_polling();
            }
            send(SIGTERM);
            return signals.stop_requested() ? 1 : 0;
          }) == 0);
  }
}
