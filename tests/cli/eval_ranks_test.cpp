// moe eval on several processes says and writes what one process does.

#include <filesystem>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

using moe::test::run_moe;
using moe::test::TempDir;
namespace fs = std::filesystem;

namespace {

const fs::path& tiny() {
  static const fs::path folder = moe::test::source_folder() / "recipes/tiny";
  return folder;
}

// A mixture made of the tiny model.
void upcycle(const fs::path& out) {
  REQUIRE(run_moe({"upcycle", (tiny() / "model").string(), "-o", out.string(), "--experts", "4",
                   "--router", "top1+ir:cf=1", "--quiet"})
              .exit_code == 0);
}

std::vector<std::string> eval(const fs::path& model, const fs::path& out) {
  return {"eval",
          model.string(),
          "--tasks",
          (tiny() / "quiz.jsonl").string(),
          "--group-tokens",
          "100",
          "--threads",
          "1",
          "--stats",
          (out.string() + "-stats.json"),
          "-o",
          out.string(),
          "--quiet"};
}

}  // namespace

TEST_CASE("processes share an evaluation out and end in the numbers of one", "[cli]") {
  const TempDir dir;
  upcycle(dir / "moe");
  const auto one = run_moe(eval(dir / "moe", dir / "one"));
  REQUIRE(one.exit_code == 0);
  auto arguments = eval(dir / "moe", dir / "two");
  arguments.insert(arguments.end(), {"--ranks", "2"});
  const auto two = run_moe(arguments);
  INFO(two.err);
  REQUIRE(two.exit_code == 0);
  CHECK(two.out == one.out);
  CHECK(moe::test::read_file(dir / "two-stats.json") ==
        moe::test::read_file(dir / "one-stats.json"));
  for (const auto& entry : fs::directory_iterator(dir / "one")) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    REQUIRE(fs::exists(dir / "two" / name));
    if (name != "results.json") {  // which tells its seconds
      CHECK(moe::test::read_file(dir / "two" / name) == moe::test::read_file(entry.path()));
    }
  }
}

TEST_CASE("processes share prompts out and write the answers of one", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir dir;
  const std::string name = "bbh_zeroshot_boolean_expressions";
  // Enough of them that each process answers in two rounds.
  const auto answers = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "eval",      (moe::test::shared_data() / "stories260K-hf").string(),
        "--tasks",   name,
        "--data",    (moe::test::shared_data() / "bench").string(),
        "--limit",   "131",
        "--threads", "1",
        "-o",        (dir / out).string(),
        "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    const auto run = run_moe(words);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    return moe::test::read_file(dir / out / ("samples_" + name + ".jsonl"));
  };
  const std::string one = answers("one", {});
  CHECK(one == answers("two", {"--ranks", "2"}));
}

TEST_CASE("standard input is no file for several ranks", "[cli]") {
  const auto result =
      run_moe({"eval", (tiny() / "model").string(), "--requests", "-", "--ranks", "2"});
  CHECK(result.exit_code == 2);
  CHECK(result.err.find("--requests - on 2 ranks") != std::string::npos);
}
