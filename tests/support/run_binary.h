#pragma once
// Runs the moe binary and returns its exit code and both streams. No stream is a terminal.

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

struct RunResult {
  int exit_code = -1;
  std::string out, err;
};

inline std::string shell_quote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

// `prefix` precedes the command: environment variables, ulimit, a redirection of standard input.
inline RunResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                             const std::string& prefix = "") {
  const TempDir streams;
  std::string command = prefix + (prefix.empty() ? "" : " ") + shell_quote(program);
  for (const auto& argument : arguments) {
    command += " " + shell_quote(argument);
  }
  command += " >" + shell_quote((streams / "out").string()) + " 2>" +
             shell_quote((streams / "err").string()) + " </dev/null";
  const int status = std::system(command.c_str());  // NOLINT: command of the test
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(streams / "out"), read_file(streams / "err")};
}

inline RunResult run_moe(const std::vector<std::string>& arguments,
                         const std::string& prefix = "") {
  return run_program(moe_binary(), arguments, prefix);
}

// Returns true if `text` contains `part`. A check that fails shows the text.
inline bool says(const std::string& text, const std::string& part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace moe::test
