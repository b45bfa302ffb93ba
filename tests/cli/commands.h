#pragma once
// Helpers of the tests of commands: functions that run moe and check the result, and a fixture with
// a small model and training rows.

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe::test {

using Args = std::vector<std::string>;

// Returns `args` followed by `more`.
inline Args joined(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// Returns the path of a file in recipes/tiny: "model" (trained, with a tokenizer),
// "instruct.jsonl", "quiz.jsonl".
inline std::string tiny(const std::string& name) {
  return (source_folder() / "recipes/tiny" / name).string();
}

// Runs moe and requires exit code 0.
inline RunResult succeed(const Args& args, const std::string& prefix = "") {
  RunResult run = run_moe(args, prefix);
  INFO(fmt::format("moe {}: {}", fmt::join(args, " "), run.err));
  REQUIRE(run.exit_code == 0);
  return run;
}

// Checks that a command failed with exit code 2, an empty standard output, and a one-line message
// that contains `fact`.
inline void check_refused(const RunResult& run, const std::string& fact) {
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, contains_text(fact));
  CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
}

inline void check_refused(const Args& args, const std::string& fact) {
  CAPTURE(args);
  check_refused(run_moe(args), fact);
}

// Checks that `command` with each of these flags is refused, with a message that contains the fact.
inline void check_refused_each(const Args& command,
                               const std::vector<std::pair<Args, std::string>>& refusals) {
  for (const auto& [flags, fact] : refusals) {
    check_refused(joined(command, flags), fact);
  }
}

// Checks that `text` contains each of `parts`.
inline void check_contains(const std::string& text, const Args& parts) {
  for (const auto& part : parts) {
    CHECK_THAT(text, contains_text(part));
  }
}

// A temporary folder with a dense model without a tokenizer ("dense") and 16 training rows of 6
// tokens ("rows.jsonl").
struct TrainingFixture {
  TempDir dir;

  TrainingFixture() {
    write_tiny_checkpoint(dir / "dense");
    write_training_rows(dir / "rows.jsonl");
  }

  std::string path(const std::string& name) const { return (dir / name).string(); }
  std::string read(const std::string& name) const { return read_file(dir / name); }
  std::string weights(const std::string& run) const {
    return read(run + "/final/model.safetensors");
  }

  void upcycle(const std::string& out, const Args& flags = {}) const {
    succeed(
        joined({"upcycle", path("dense"), "-o", path(out), "--experts", "4", "--quiet"}, flags));
  }
  Args training(const Args& flags, const std::string& model = "dense",
                const std::string& run = "run") const {
    return joined(
        {"train", path(model), "-o", path(run), "--data", path("rows.jsonl"), "--threads", "1"},
        flags);
  }
  RunResult train(const Args& flags, const std::string& model = "dense",
                  const std::string& run = "run") const {
    return run_moe(training(flags, model, run));
  }
};

}  // namespace moe::test
