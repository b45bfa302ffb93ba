#include "core/train/run_folder.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::train;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;
namespace fs = std::filesystem;

TEST_CASE(
    "a run that is there is refused without force, and so are files and the model's own parent",
    "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  CHECK_NOTHROW(RunFolder(run, model, false));
  fs::create_directories(run);
  CHECK_NOTHROW(RunFolder(run, model, false));  // empty
  write_file(run / "metrics.jsonl", "{}");
  CHECK(user_error_of([&] { RunFolder(run, model, false); }) ==
        run.string() + ": is there already; give another -o, or --force to begin anew");
  CHECK_NOTHROW(RunFolder(run, model, true));
  CHECK(user_error_of([&] { RunFolder(run, run / "final", true); }) ==
        run.string() + ": the model " + (run / "final").string() +
            " lies inside it; give another -o");
  CHECK(user_error_of([&] { RunFolder(run, run, true); }).find("lies inside it") !=
        std::string::npos);
  CHECK(user_error_of([&] { RunFolder(run / "metrics.jsonl", model, true); }) ==
        (run / "metrics.jsonl").string() + ": is a file; name a folder for the run");
}

TEST_CASE("beginning anew removes what a run leaves and nothing else", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run";
  for (const char* file :
       {"final/config.json", "checkpoints/step-2/config.json", "metrics.jsonl", "mine.txt"}) {
    write_file(run / file, "x");
  }
  RunFolder(run, dir / "model", true).begin("[train]\n");
  CHECK_FALSE(fs::exists(run / "final"));
  CHECK_FALSE(fs::exists(run / "checkpoints"));
  CHECK_FALSE(fs::exists(run / "metrics.jsonl"));
  CHECK(fs::exists(run / "mine.txt"));
  CHECK(moe::test::read_file(run / "settings.toml") == "[train]\n");
}

TEST_CASE("old checkpoints go, the newest stay, and partial ones do not count", "[train]") {
  const TempDir dir;
  const RunFolder run(dir / "run", dir / "model", false);
  CHECK(run.saved_steps().empty());
  CHECK_FALSE(run.last_checkpoint().has_value());
  for (const int64_t step : {2, 4, 10, 100}) {
    write_file(run.checkpoint(step) / "config.json", "x");
  }
  write_file(run.path() / "checkpoints" / "step-200.partial" / "config.json", "x");
  write_file(run.path() / "checkpoints" / "step-" / "config.json", "x");
  CHECK(run.saved_steps() == std::vector<int64_t>{2, 4, 10, 100});
  run.keep_newest(2);
  CHECK(run.saved_steps() == std::vector<int64_t>{10, 100});
  run.keep_newest(5);
  run.remove_checkpoint(100);
  run.remove_checkpoint(77);
  CHECK(run.last_checkpoint() == run.checkpoint(10));
}
