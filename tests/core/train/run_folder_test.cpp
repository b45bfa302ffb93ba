#include "core/train/run/run_folder.h"

#include "core/io/checksums.h"
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
        run.string() +
            ": is there already and is no run of moe train; give another -o, or --force to begin "
            "there");
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
  RunFolder(run, dir / "model", true).begin("[train]\n", RunState::kNew);
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

TEST_CASE("a run goes on under the same settings, and is refused with those that differ",
          "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  const std::string settings = "# moe 1\n[train]\nsteps = 12\nlr = 0.1\nkeep = 2\n";
  RunFolder(run, model, false).begin(settings, RunState::kNew);
  RunFolder again(run, model, false);
  CHECK(again.state(settings) == RunState::kGoesOn);
  CHECK(again.state("# moe 2\n[train]\nlr = 0.1\nsteps = 12\nkeep = 9\nsave-every = 3\n") ==
        RunState::kGoesOn);
  CHECK(user_error_of([&] { again.state("[train]\nsteps = 13\nclip = 1\n"); }) ==
        run.string() +
            ": a run with other settings is there (clip was not given, is 1; lr was 0.1, is not "
            "given; steps was 12, is 13); give the same to go on, another -o, or --force to begin "
            "anew");
  CHECK(RunFolder(run, model, true).state("[train]\nsteps = 13\n") == RunState::kNew);
  write_file(run / "checkpoints" / "step-2" / "x", "x");
  again.begin("[train]\nsteps = 12\n", RunState::kGoesOn);
  CHECK(user_error_of([&] {
          RunFolder(run, model, false).begin("[train]\nsteps = 12\n", RunState::kGoesOn);
        }) == run.string() +
                  ": another run is writing it now; wait for it or give another output folder");
  CHECK(fs::exists(run / "checkpoints" / "step-2" / "x"));
  fs::create_directories(run / "final");
  CHECK(again.state("[train]\nsteps = 12\n") == RunState::kDone);
}

TEST_CASE("the newest checkpoint that is whole is found, damaged ones are named", "[train]") {
  const TempDir dir;
  const RunFolder run(dir / "run", dir / "model", false);
  std::vector<std::string> damaged;
  CHECK_FALSE(run.newest_whole(damaged).has_value());
  for (const int64_t step : {2, 4, 6}) {
    write_file(run.checkpoint(step) / "config.json", "x");
    moe::io::write_checksums(run.checkpoint(step));
  }
  CHECK(run.newest_whole(damaged) == run.checkpoint(6));
  write_file(run.checkpoint(6) / "config.json", "y");
  fs::remove(run.checkpoint(4) / "checksums.json");
  CHECK(run.newest_whole(damaged) == run.checkpoint(2));
  REQUIRE(damaged.size() == 2);
  CHECK(damaged[0] == run.checkpoint(6).string() +
                          ": config.json is not as it was written; the checkpoint before it is "
                          "used");
}

TEST_CASE("checkpoints of steps that keep-every divides stay", "[train]") {
  const TempDir dir;
  const RunFolder run(dir / "run", dir / "model", false);
  for (const int64_t step : {2, 4, 6, 8, 10}) {
    write_file(run.checkpoint(step) / "config.json", "x");
  }
  run.keep_newest(2, 4);
  CHECK(run.saved_steps() == std::vector<int64_t>{4, 8, 10});
}
