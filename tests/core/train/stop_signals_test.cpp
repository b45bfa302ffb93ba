#include "core/train/loop/stop_signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

using moe::train::StopSignals;

TEST_CASE("a signal stays pending until it is asked for, and is remembered", "[train]") {
  for (const int signal : {SIGINT, SIGTERM}) {
    StopSignals signals;
    CHECK_FALSE(signals.requested());
    ::kill(::getpid(), signal);
    CHECK(signals.requested());
    CHECK(signals.requested());
  }
}

TEST_CASE("a signal that nobody asked for ends with the object", "[train]") {
  {
    const StopSignals signals;
    ::kill(::getpid(), SIGINT);
  }
  SUCCEED("still alive");  // the default action would have ended this process
  StopSignals later;
  CHECK_FALSE(later.requested());
}

TEST_CASE("before work begins, a signal that no question answers ends the process", "[train]") {
  const auto end_of = [](bool works) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGTERM, SIG_DFL);  // not the test framework's handler
      StopSignals signals;
      if (works) {
        signals.begin_work();
      }
      ::kill(::getpid(), SIGTERM);
      std::this_thread::sleep_for(StopSignals::kLongestWait * (works ? 1 : 10) +
                                  std::chrono::seconds(1));
      ::_exit(signals.requested() ? 3 : 4);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  };
  CHECK(end_of(/*works=*/false) == -SIGTERM);
  CHECK(end_of(/*works=*/true) == 3);
}

TEST_CASE("after one signal was answered, the next ends the process at once", "[train]") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);  // not the test framework's handler
    StopSignals signals;
    ::kill(::getpid(), SIGTERM);
    if (!signals.requested()) {
      ::_exit(1);
    }
    ::kill(::getpid(), SIGINT);
    ::_exit(2);  // still there
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}
