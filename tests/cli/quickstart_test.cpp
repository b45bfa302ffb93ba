// moe quickstart refuses folders of others and missing programs. tests/wheel/run.sh and continuous
// integration run the quickstart itself.

#include <iterator>

#include "tests/cli/commands.h"

using namespace moe::test;

TEST_CASE("moe quickstart does not touch a folder with other contents", "[cli]") {
  const TempDir dir;
  write_file(dir / "mine", "kept");
  check_refused({"quickstart", "-o", dir.path().string()},
                dir.path().string() + " holds something else; give another folder");
  CHECK(read_file(dir / "mine") == "kept");
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1);
}

TEST_CASE("moe quickstart names a missing program before it writes a file", "[cli]") {
  const TempDir dir;
  const std::string out = (dir / "run").string();
  const Words words = {"quickstart", "-o", out, "--short"};
  check_refused(run_moe(words, "PYTHON=/nowhere/python3"), "no /nowhere/python3 here");
  check_refused(run_moe(words, "PATH=/nowhere"), "bash, which runs ");

  const std::filesystem::path binary = moe_binary();
  std::filesystem::copy_file(binary, dir / "moe");  // without its recipes
  std::filesystem::copy_file(binary.parent_path() / "libmoe_ops.so", dir / "libmoe_ops.so");
  check_refused(run_program((dir / "moe").string(), words),
                dir.path().string() + ": recipes/quickstart.sh is neither");
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("the quickstart replaces only the files of its list", "[cli]") {
  const TempDir dir;
  const std::filesystem::path run = dir / "run", thesis = run / "texts/thesis.txt";
  const auto quickstart = [&] {
    return run_program("bash",
                       {(source_folder() / "recipes/quickstart.sh").string(), run, "--short"},
                       "MOE=/bin/false");
  };
  write_file(thesis, "mine");
  write_file(run / "moe/thesis.txt", "mine");
  write_file(run / ".moe-quickstart", "");
  CHECK(quickstart().exit_code == 1);  // by /bin/false; no file is removed
  CHECK(read_file(thesis) == "mine");
  CHECK(read_file(run / "moe/thesis.txt") == "mine");
  write_file(run / "texts/quiz.jsonl", "of the list");
  CHECK(quickstart().exit_code == 1);
  write_file(run / ".moe-quickstart", "texts/known.jsonl\n");
  check_refused(quickstart(), (run / "texts/quiz.jsonl").string() + " is not in the list");
  CHECK(read_file(run / "texts/quiz.jsonl") == "of the list");
  std::filesystem::rename(run / "texts", dir / "texts");
  std::filesystem::create_directory_symlink(dir / "texts", run / "texts");
  check_refused(quickstart(), (run / "texts").string() + " is a link");
}
