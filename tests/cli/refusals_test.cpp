// What cannot be meant is refused by one sentence, however it is written.

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using moe::test::contains_text;
using moe::test::run_moe;
using moe::test::TempDir;
using moe::test::write_file;

namespace {

void check_refused(const std::vector<std::string>& words, const std::string& part) {
  const auto result = run_moe(words);
  CAPTURE(words.front(), result.err);
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, contains_text(part));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.size() < 1000);
  CHECK(result.out.empty());
}

}  // namespace

TEST_CASE("a value that is empty is refused, of every command", "[cli]") {
  const TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "m");
  const std::string model = (dir / "m").string(), out = (dir / "out").string();
  check_refused({"upcycle", model, "-o", out, "--router", ""},
                "--router: the value is empty; give one or omit the flag");
  check_refused({"upcycle", model, "-o", ""}, "--out: the value is empty");
  check_refused({"train", model, "--data", "x", "-o", ""}, "--out: the value is empty");
  check_refused({"train", model, "--data", "x", "-o", out, "--router", ""}, "--router");
  check_refused({"eval", model, "--tasks", ""}, "--tasks");
  check_refused({"eval", ""}, "MODEL: the value is empty");
  check_refused({"bench", "load", ""}, "MODEL: the value is empty");
  write_file(dir / "r.toml", "[upcycle]\nrouter = \"\"\n");
  check_refused({"upcycle", model, "-o", out, "--config", (dir / "r.toml").string()}, "--router");
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("a standard deviation that is no number is refused", "[cli]") {
  const TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "m");
  for (const char* value : {"nan", "inf", "-nan"}) {
    check_refused(
        {"upcycle", (dir / "m").string(), "-o", (dir / "out").string(), "--router-std", value},
        "--router-std");
  }
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
}

TEST_CASE("a name that is too long is shown in part, in one sentence", "[cli]") {
  const TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "m");
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const std::string model = (dir / "m").string(), name(5000, 'n');
  const std::string shown = std::string(80, 'n') + ".." + std::string(80, 'n');
  check_refused({"upcycle", model, "-o", name}, shown);
  check_refused({"train", model, "--data", (dir / "rows.jsonl").string(), "-o", name}, shown);
  check_refused({"train", model, "--data", name, "-o", (dir / "out").string()}, shown);
  check_refused({"inspect", name}, shown);
  check_refused({"generate", name, "--prompt", "a"}, shown);
  check_refused({"upcycle", model, "-o", "x", "--layers", name}, shown);
  check_refused({name}, shown);
}

TEST_CASE("what is wrong with a recipe is said with the recipe's name", "[cli]") {
  const TempDir dir;
  const std::string recipe = (dir / "r.toml").string();
  const auto check_recipe = [&](const std::string& text, const std::string& part) {
    write_file(recipe, text);
    check_refused({"train", "m", "--config", recipe}, "moe: --config " + recipe + part);
    check_refused({"--config", recipe, "train", "m"}, "moe: --config " + recipe + part);
  };
  check_recipe("[train]\nlr = = 1\n", " line 2: ");
  check_recipe("lr = 1\n", ": 'lr' is outside a table");
  check_recipe("[trian]\n", ": [trian] is not a command");
  check_recipe("[train]\nlrr = 1\n", ": 'lrr' under [train] is not a flag of that command");
}
