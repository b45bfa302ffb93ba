// moe eval on several processes prints and writes what one process does.

#include <filesystem>

#include "tests/cli/commands.h"
#include "tests/support/data.h"

using namespace moe::test;
namespace fs = std::filesystem;

TEST_CASE("processes share an evaluation out and give the results of one", "[cli]") {
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
    if (name != "results.json") {  // which has its seconds
      CHECK(read_file(dir / "two" / name) == read_file(entry.path()));
    }
  }
}

// Checks that two processes write the generated answers of one.
void check_answers(const std::string& limit) {
  const TempDir dir;
  const std::string name = "bbh_zeroshot_boolean_expressions";
  const auto answers = [&](const std::string& out, const Words& more) {
    succeed(joined({"eval", (shared_data() / "stories260K-hf").string(), "--tasks", name, "--data",
                    (shared_data() / "bench").string(), "--limit", limit, "--threads", "1", "-o",
                    (dir / out).string(), "--quiet"},
                   more));
    return read_file(dir / out / ("samples_" + name + ".jsonl"));
  };
  CHECK(answers("one", {}) == answers("two", {"--ranks", "2"}));
}

TEST_CASE("processes share prompts out and write the answers of one", "[cli]") {
  MOE_NEED_SHARED_DATA();
  check_answers("9");
}

TEST_CASE("processes that answer in two rounds write the answers of one", "[.][slow][cli]") {
  MOE_NEED_SHARED_DATA();
  check_answers("131");
}

TEST_CASE("several ranks do not read requests from standard input", "[cli]") {
  check_refused({"eval", tiny("model"), "--requests", "-", "--ranks", "2"},
                "--requests - on 2 ranks");
}
