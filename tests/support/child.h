#pragma once
// Work in a child process: for cases that fault, kill, mount or write from several processes.

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/catch.h"

namespace moe::test {

// Starts a child that runs `work` and exits with code 0, or 98 if `work` throws.
inline pid_t start_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      work();
    } catch (...) {
      ::_exit(98);
    }
    ::_exit(0);
  }
  return child;
}

// Blocks until the child has ended. Returns its exit code, or minus the signal that ended it.
inline int wait_for_child(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

inline int run_in_child(const std::function<void()>& work) {
  return wait_for_child(start_child(work));
}

}  // namespace moe::test
