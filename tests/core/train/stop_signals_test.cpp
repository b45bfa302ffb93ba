#include "core/train/loop/stop_signals.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/catch.h"

using moe::train::StopSignals;

namespace {

constexpr std::chrono::milliseconds kMoment{200};
constexpr auto kAfterWindow = StopSignals::kMergeWindow + kMoment;
constexpr auto kAfterTimeout = StopSignals::kPollTimeout + std::chrono::seconds(2);

void send(int signal, std::chrono::milliseconds wait = kMoment) {
  ::kill(::getpid(), signal);
  std::this_thread::sleep_for(wait);
}

// A child process with the default actions of all signals.
struct Child {
  std::string name;
  int expected;  // exit code, or minus the signal that ends the child
  std::function<int()> body;
  pid_t pid = -1;
};

// Runs all children at once, since they sleep for seconds, and checks how each ended.
void check_children(std::vector<Child> children) {
  for (Child& child : children) {
    child.pid = ::fork();
    if (child.pid == 0) {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        ::signal(signal, SIG_DFL);  // not the test framework's handlers
      }
      ::_exit(child.body());
    }
  }
  for (const Child& child : children) {
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    CAPTURE(child.name);
    CHECK((WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)) == child.expected);
  }
}

// The body of a child with an object that polls.
std::function<int()> polling(std::function<void(StopSignals&)> body) {
  return [body = std::move(body)] {
    StopSignals signals;
    signals.start_polling();
    body(signals);
    return signals.stop_requested() ? 3 : 4;
  };
}

}  // namespace

TEST_CASE("a signal is pending until it is polled, and one that is ignored stays ignored") {
  std::vector<Child> children;
  for (const bool is_polling : {false, true}) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      children.push_back({fmt::format("signal {}, polling {}", signal, is_polling), 0, [=] {
                            StopSignals signals;
                            if (is_polling) {
                              signals.start_polling();
                            }
                            if (signals.stop_requested()) {
                              return 1;
                            }
                            send(signal);
                            return signals.stop_requested() && signals.stop_requested() ? 0 : 2;
                          }});
    }
    for (const bool all : {false, true}) {
      children.push_back({fmt::format("all ignored {}, polling {}", all, is_polling), 0, [=] {
                            ::signal(SIGHUP, SIG_IGN);
                            if (all) {
                              ::signal(SIGINT, SIG_IGN);
                              ::signal(SIGTERM, SIG_IGN);
                            }
                            StopSignals signals;
                            if (is_polling) {
                              signals.start_polling();
                            }
                            send(SIGHUP);
                            if (signals.stop_requested()) {
                              return 1;
                            }
                            send(SIGTERM);
                            return signals.stop_requested() != all ? 0 : 2;
                          }});
    }
  }
  children.push_back({"discarded with the object", 0, [] {
                        {
                          const StopSignals signals;
                          send(SIGINT);
                        }
                        StopSignals later;
                        return later.stop_requested() ? 1 : 0;
                      }});
  check_children(std::move(children));
}

TEST_CASE("a signal that is not polled, or a second or third one, ends the process") {
  check_children({{"not polled before polling starts", -SIGHUP,
                   [] {
                     const StopSignals signals;
                     send(SIGHUP, kAfterTimeout);
                     return 0;
                   }},
                  {"a second one before polling starts", 0,
                   [] {
                     StopSignals signals;
                     send(SIGINT, kAfterWindow);
                     const bool is_seen = signals.stop_requested();
                     send(SIGTERM);
                     return is_seen && signals.stop_requested() ? 0 : 1;
                   }},
                  {"a second one that is not polled before polling starts", -SIGTERM,
                   [] {
                     StopSignals signals;
                     send(SIGINT, kAfterWindow);
                     signals.stop_requested();
                     send(SIGTERM, kAfterTimeout);
                     return 0;
                   }},
                  {"not polled later", 3, polling([](auto&) { send(SIGHUP, kAfterTimeout); })},
                  {"within the merge window", 3, polling([](auto&) {
                     send(SIGTERM);
                     send(SIGINT);
                     send(SIGTERM, kAfterWindow);
                   })},
                  {"after the merge window", -SIGINT, polling([](auto&) {
                     send(SIGTERM, kAfterWindow);
                     send(SIGINT);
                   })},
                  {"the second while a checkpoint is written", 3, polling([](auto& signals) {
                     signals.begin_saving();
                     send(SIGTERM, kAfterWindow);
                     send(SIGTERM);
                   })},
                  {"the third while a checkpoint is written", -SIGINT, polling([](auto& signals) {
                     signals.begin_saving();
                     send(SIGTERM, kAfterWindow);
                     send(SIGTERM);
                     send(SIGINT);
                   })}});
}
