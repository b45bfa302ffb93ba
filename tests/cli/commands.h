#pragma once
// Helpers of the tests of commands: runs of moe with checks of their results, and a small model
// with rows to train it on.

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe::test {

using Words = std::vector<std::string>;

inline Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Returns the path of a file in recipes/tiny: "model" (trained, with a tokenizer),
// "instruct.jsonl", "quiz.jsonl".
inline std::string tiny(const std::string& name) {
  return (source_folder() / "recipes/tiny" / name).string();
}

// Runs moe and requires exit code 0.
inline RunResult succeed(const Words& words, const std::string& prefix = "") {
  RunResult run = run_moe(words, prefix);
  INFO(fmt::format("moe {}: {}", fmt::join(words, " "), run.err));
  REQUIRE(run.exit_code == 0);
  return run;
}

// Checks that a command printed nothing and ended with exit code 2 and a one-line message that has
// `fact`.
inline void check_refused(const RunResult& run, const std::string& fact) {
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, contains_text(fact));
  CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
}

inline void check_refused(const Words& words, const std::string& fact) {
  CAPTURE(words);
  check_refused(run_moe(words), fact);
}

// Checks that `command` is refused with each of these flags, and the fact of its message.
inline void check_refused_each(const Words& command,
                               const std::vector<std::pair<Words, std::string>>& refusals) {
  for (const auto& [flags, fact] : refusals) {
    check_refused(joined(command, flags), fact);
  }
}

// Checks that `text` has all `parts`.
inline void check_has(const std::string& text, const Words& parts) {
  for (const auto& part : parts) {
    CHECK_THAT(text, contains_text(part));
  }
}

// A folder with a dense model without tokenizer ("dense") and sixteen rows of six tokens
// ("rows.jsonl").
struct TrainingWorld {
  TempDir dir;

  TrainingWorld() {
    write_tiny_checkpoint(dir / "dense");
    write_training_rows(dir / "rows.jsonl");
  }

  std::string path(const std::string& name) const { return (dir / name).string(); }
  std::string read(const std::string& name) const { return read_file(dir / name); }
  std::string weights(const std::string& run) const {
    return read(run + "/final/model.safetensors");
  }

  void upcycle(const std::string& out, const Words& flags = {}) const {
    succeed(
        joined({"upcycle", path("dense"), "-o", path(out), "--experts", "4", "--quiet"}, flags));
  }
  Words training(const Words& flags, const std::string& model = "dense",
                 const std::string& run = "run") const {
    return joined(
        {"train", path(model), "-o", path(run), "--data", path("rows.jsonl"), "--threads", "1"},
        flags);
  }
  RunResult train(const Words& flags, const std::string& model = "dense",
                  const std::string& run = "run") const {
    return run_moe(training(flags, model, run));
  }
};

}  // namespace moe::test
