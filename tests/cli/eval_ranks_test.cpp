// moe eval --ranks: the output equals that of a single process.

#include <filesystem>

#include "tests/cli/commands.h"

using namespace moe::test;
namespace fs = std::filesystem;

TEST_CASE("several ranks write the results of a single process", "[cli]") {
  const TempDir dir;
  succeed({"upcycle", tiny("model"), "-o", (dir / "moe").string(), "--experts", "4", "--router",
           "top1+ir:cf=1", "--quiet"});
  const auto eval = [&](const std::string& out, const Words& more) {
    return succeed(
        joined({"eval", (dir / "moe").string(), "--tasks", tiny("quiz.jsonl"), "--limit", "60",
                "--group-tokens", "100", "--threads", "1", "--stats",
                (dir / (out + "-stats.json")).string(), "-o", (dir / out).string(), "--quiet"},
               more));
  };
  CHECK(eval("one", {}).out == eval("two", {"--ranks", "2"}).out);
  CHECK(read_file(dir / "two-stats.json") == read_file(dir / "one-stats.json"));
  for (const auto& entry : fs::directory_iterator(dir / "one")) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    REQUIRE(fs::exists(dir / "two" / name));
    if (name != "results.json") {  // which has the elapsed seconds
      CHECK(read_file(dir / "two" / name) == read_file(entry.path()));
    }
  }
}

// Checks that two processes write the generated answers of one to `count` questions.
void check_answers(int count) {
  const TempDir dir;
  std::string lines;
  for (int i = 1; i <= count; ++i) {
    lines += fmt::format("{{\"n\": {}, \"before\": \"{}\"}}\n", i, i - 1);
  }
  write_file(dir / "numbers.jsonl", lines);
  write_file(dir / "numbers.toml",
             "data = \"numbers.jsonl\"\noutput_type = \"generate_until\"\n"
             "doc_to_text = \"The number before {{n}} is\"\ndoc_to_target = \"{{before}}\"\n"
             "until = [\".\"]\nmax_gen_toks = 16\n");
  const auto answers = [&](const std::string& out, const Words& more) {
    succeed(joined({"eval", tiny("model"), "--tasks", (dir / "numbers.toml").string(), "--threads",
                    "1", "-o", (dir / out).string(), "--quiet"},
                   more));
    return read_file(dir / out / "samples_numbers.jsonl");
  };
  CHECK(answers("one", {}) == answers("two", {"--ranks", "2"}));
}

TEST_CASE("several ranks write the generated answers of a single process", "[cli]") {
  check_answers(9);
}

TEST_CASE("several ranks answer more prompts than fit a round", "[.][slow][cli]") {
  check_answers(131);
}

TEST_CASE("several ranks do not read requests from standard input", "[cli]") {
  check_refused({"eval", tiny("model"), "--requests", "-", "--ranks", "2"},
                "--requests - on 2 ranks");
}
