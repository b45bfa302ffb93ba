#pragma once
// A moe process in the background, which a test observes and signals while it runs.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/run_binary.h"

namespace moe::test {

// Polls `condition`. Returns false if it does not become true within three minutes.
inline bool wait_until(const std::function<bool()>& condition) {
  for (int poll = 0; poll < 36000; ++poll) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// A moe process in a process group of its own. Its standard input never ends.
class Process {
 public:
  // Sets `variables` and ignores `ignored_signal` (0: none) in the process.
  explicit Process(std::vector<std::string> arguments,
                   const std::map<std::string, std::string>& variables = {}, int ignored_signal = 0)
      : pid_(fork()) {
    if (pid_ == 0) {
      setpgid(0, 0);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        std::signal(signal, SIG_DFL);
      }
      if (ignored_signal != 0) {
        std::signal(ignored_signal, SIG_IGN);
      }
      unsetenv("OMP_WAIT_POLICY");
      unsetenv("GOMP_SPINCOUNT");
      for (const auto& [name, value] : variables) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      int ends[2] = {-1, -1};
      if (pipe(ends) == 0) {  // the process holds both ends
        dup2(ends[0], STDIN_FILENO);
      }
      dup2(open((streams_ / "out").c_str(), O_CREAT | O_WRONLY, 0600), STDOUT_FILENO);
      dup2(open((streams_ / "err").c_str(), O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
      std::string binary = moe_binary();
      std::vector<char*> words = {binary.data()};
      for (auto& argument : arguments) {
        words.push_back(argument.data());
      }
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(127);
    }
  }
  ~Process() {
    if (!has_ended()) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::vector<pid_t> children() const {
    std::istringstream list(
        read_file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children"));
    return {std::istream_iterator<pid_t>(list), {}};
  }
  bool has_ended() {
    ended_ = ended_ || waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }
  // Blocks until the process has ended. The exit code is 128 + the signal if a signal ended it.
  RunResult result() {
    REQUIRE(wait_until([this] { return has_ended(); }));
    return {WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
            read_file(streams_ / "out"), read_file(streams_ / "err")};
  }
  int exit_code() {
    const RunResult ended = result();
    UNSCOPED_INFO(ended.err);
    return ended.exit_code;
  }

 private:
  TempDir streams_;
  pid_t pid_;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace moe::test
