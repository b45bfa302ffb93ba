// moe quickstart: what it refuses. Its job itself is run by tests/wheel/run.sh (the short one) and
// by continuous integration.

#include <filesystem>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

using moe::test::run_moe;
using moe::test::says;
using moe::test::TempDir;

TEST_CASE("moe quickstart leaves a folder alone that holds something else", "[cli]") {
  const TempDir dir;
  moe::test::write_file(dir / "mine", "kept");
  const auto refused = run_moe({"quickstart", "-o", dir.path().string()});
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, dir.path().string() + " holds something else; give another folder"));
  CHECK(moe::test::read_file(dir / "mine") == "kept");
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1);
}

TEST_CASE("moe quickstart names what it lacks before it makes anything", "[cli]") {
  const TempDir dir;
  const std::string out = (dir / "run").string();
  const auto without_python = run_moe({"quickstart", "-o", out}, "PYTHON=/nowhere/python3");
  CHECK(without_python.exit_code == 2);
  CHECK(says(without_python.err, "no /nowhere/python3 here"));

  const std::filesystem::path binary = moe::test::moe_binary();
  std::filesystem::copy_file(binary, dir / "moe");  // without its recipes
  std::filesystem::copy_file(binary.parent_path() / "libmoe_ops.so", dir / "libmoe_ops.so");
  const auto alone =
      moe::test::run_program((dir / "moe").string(), {"quickstart", "-o", out, "--short"});
  CHECK(alone.exit_code == 2);
  CHECK(says(alone.err, dir.path().string() + ": recipes/quickstart.sh is neither"));

  const auto without_bash = run_moe({"quickstart", "-o", out}, "PATH=/nowhere");
  CHECK(without_bash.exit_code == 2);
  CHECK(says(without_bash.err, "bash, which runs "));
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("the quickstart replaces the files of its list and no others", "[cli]") {
  const TempDir dir;
  const std::filesystem::path run = dir / "run", thesis = run / "texts/thesis.txt";
  const auto quickstart = [&] {
    return moe::test::run_program(
        "bash", {(moe::test::source_folder() / "recipes/quickstart.sh").string(), run, "--short"},
        "MOE=/bin/false");
  };
  moe::test::write_file(thesis, "mine");
  moe::test::write_file(run / "moe/thesis.txt", "mine");
  moe::test::write_file(run / ".moe-quickstart", "");
  CHECK(quickstart().exit_code == 1);  // /bin/false: nothing is in the way, nothing is removed
  CHECK(moe::test::read_file(thesis) == "mine");
  CHECK(moe::test::read_file(run / "moe/thesis.txt") == "mine");
  moe::test::write_file(run / "texts/quiz.jsonl", "of the list");
  CHECK(quickstart().exit_code == 1);
  moe::test::write_file(run / ".moe-quickstart", "texts/known.jsonl\n");
  const auto refused = quickstart();
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, (run / "texts/quiz.jsonl").string() + " is not in the list"));
  CHECK(moe::test::read_file(run / "texts/quiz.jsonl") == "of the list");
  std::filesystem::rename(run / "texts", dir / "texts");
  std::filesystem::create_directory_symlink(dir / "texts", run / "texts");
  const auto through_link = quickstart();
  CHECK(through_link.exit_code == 2);
  CHECK(says(through_link.err, (run / "texts").string() + " is a link"));
}
