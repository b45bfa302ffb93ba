#include "core/train/checkpoint/run_folder.h"

#include "core/io/checksums.h"
#include "core/io/staged_folder.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::train;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

void add_checkpoint(const RunFolder& run, int64_t step) {
  run.claim(run.checkpoint(step));
  write_file(run.checkpoint(step) / "config.json", "x");
}

// Of a run whose model and data are not looked at: their paths count.
RunState state_of(const RunFolder& run, const std::string& settings_toml) {
  Inputs no_inputs;
  std::vector<std::string> notes;
  return run.state(settings_toml, no_inputs, notes);
}

}  // namespace

TEST_CASE(
    "a run that is there is refused without force, and so are files and the model's own parent",
    "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  CHECK_NOTHROW(RunFolder(run, model, false));
  fs::create_directories(run);
  CHECK_NOTHROW(RunFolder(run, model, false));  // empty
  for (const char* left : {".moe-run", ".moe-run.partial-abc123", "settings.toml.partial-abc123"}) {
    write_file(run / left, "moe run 1\n");  // a run was killed before it had settings
  }
  CHECK_NOTHROW(RunFolder(run, model, false));
  write_file(run / "mine.txt", "{}");
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
  CHECK(user_error_of([&] { RunFolder(run / "mine.txt", model, true); }) ==
        (run / "mine.txt").string() + ": is a file; name a folder for the run");
}

TEST_CASE("beginning anew removes what the run before made and nothing else", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run";
  {
    RunFolder before(run, dir / "model", false);
    before.begin("[train]\n", RunState::kNew);
    add_checkpoint(before, 2);
    write_file(before.metrics(), "{}");
    write_file(before.final_model() / "config.json", "x");
  }
  const std::vector<std::string> others = {"mine.txt", "checkpoints/best/weights",
                                           "checkpoints/step-2.removed/x", "final.replaced/x",
                                           "events.out.tfevents.1.theirs"};
  for (const auto& file : others) {
    write_file(run / file, "years");
  }
  RunFolder(run, dir / "model", true).begin("[train]\nsteps = 3\n", RunState::kNew);
  CHECK_FALSE(fs::exists(run / "final"));
  CHECK_FALSE(fs::exists(run / "checkpoints/step-2"));
  CHECK_FALSE(fs::exists(run / "metrics.jsonl"));
  CHECK(moe::test::read_file(run / "settings.toml") == "[train]\nsteps = 3\n");
  for (const auto& file : others) {
    INFO(file);
    CHECK(moe::test::read_file(run / file) == "years");
  }
}

TEST_CASE("force removes nothing that no list of a run names", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run";
  write_file(run / "mine.txt", "years");
  const std::string name =
      GENERATE("settings.toml", "metrics.jsonl", "samples.jsonl", "starts.jsonl", "report.html",
               "trace.json", "final/thesis", "checkpoints/step-4/thesis", "final.partial/thesis",
               "checkpoints/step-4.partial/thesis");
  write_file(run / name, "years");
  SECTION("without a list") {}
  SECTION("with a list of something else") {
    write_file(run / ".moe-run", "moe run 2\nsettings.toml\nmetrics.jsonl\nfinal\n");
  }
  const std::string error = user_error_of([&] { RunFolder(run, dir / "model", true); });
  INFO(name);
  CHECK(error.find((run / fs::path(name).parent_path()).string()) == 0);
  CHECK(moe::test::read_file(run / name) == "years");
}

TEST_CASE("a list that others wrote names nothing outside of what runs make", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run";
  write_file(dir / "thesis", "years");
  write_file(run / "mine", "years");
  write_file(run / "checkpoints/best/thesis", "years");
  write_file(run / ".moe-run",
             "moe run 1\n../thesis\nmine\ncheckpoints\ncheckpoints/best\ncheckpoints/step-1/.."
             "\ncheckpoints/step-01\n.\n\n/\n" +
                 (dir / "thesis").string() + "\n");
  RunFolder(run, dir / "model", true).begin("[train]\n", RunState::kNew);
  CHECK(fs::exists(dir / "thesis"));
  CHECK(fs::exists(run / "mine"));
  CHECK(fs::exists(run / "checkpoints/best/thesis"));
}

TEST_CASE("what a run reads does not lie in what it removes", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  RunFolder before(run, model, false);
  before.begin("[train]\n", RunState::kNew);
  add_checkpoint(before, 2);
  const fs::path data = before.checkpoint(2) / "data.jsonl";
  write_file(data, "years");
  write_file(run / "other.jsonl", "years");
  fs::create_symlink(data, dir / "link");
  for (const bool force : {true, false}) {  // without it the checkpoint may go as an old one
    for (const fs::path& input : {data, dir / "link"}) {
      CHECK(user_error_of([&] { RunFolder(run, model, force, {input}); }) ==
            before.checkpoint(2).string() + ": " + input.string() +
                " lies inside it and would be removed; give another output folder");
    }
    CHECK_NOTHROW(RunFolder(run, model, force, {run / "other.jsonl", dir / "elsewhere"}));
  }
  const fs::path here = fs::current_path();
  CHECK(user_error_of([&] { RunFolder(here, model, true); }) ==
        here.string() +
            ": holds the working or the home folder and will not be replaced; give another output "
            "folder");
}

TEST_CASE("a checkpoint of somebody else is neither removed as old nor written over", "[train]") {
  const TempDir dir;
  RunFolder run(dir / "run", dir / "model", false);
  run.begin("[train]\n", RunState::kNew);
  for (const int64_t step : {1, 3}) {
    add_checkpoint(run, step);
  }
  write_file(run.checkpoint(2) / "config.json", "years");
  run.keep_newest(1);
  run.remove_checkpoint(2);
  CHECK(run.saved_steps() == std::vector<int64_t>{2, 3});
  CHECK(user_error_of([&] { run.claim(run.checkpoint(2)); }) ==
        run.checkpoint(2).string() + ": is not in the list of what a run of moe made there (" +
            (dir / "run/.moe-run").string() +
            ") and will not be replaced; move it, or give "
            "another -o");
  CHECK_NOTHROW(run.claim(run.checkpoint(3)));
}

TEST_CASE("a run does not write through links", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  RunFolder(run, model, false).begin("[train]\n", RunState::kNew);
  write_file(dir / "theirs", "years");
  const std::string name = GENERATE("metrics.jsonl", "settings.toml", "starts.jsonl");
  fs::remove(run / name);
  fs::create_symlink(dir / "theirs", run / name);
  for (const bool force : {false, true}) {
    CHECK(user_error_of([&] { RunFolder(run, model, force); }) ==
          (run / name).string() + ": is a link to " + (dir / "theirs").string() +
              ", and a run writes and removes nothing through a link: put the file itself there, "
              "or give another -o");
  }
  CHECK(moe::test::read_file(dir / "theirs") == "years");
}

TEST_CASE("a run whose folder is a link is refused before its first step", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model", other = dir / "other";
  {
    RunFolder before(run, model, false);
    before.begin("[train]\n", RunState::kNew);
    add_checkpoint(before, 2);
  }
  write_file(other / "step-2/config.json", "years");
  const std::string name = GENERATE("checkpoints", "checkpoints/step-2", "final");
  fs::remove_all(run / name);
  fs::create_directory_symlink(name == "checkpoints" ? other : other / "step-2", run / name);
  for (const bool force : {false, true}) {
    if (!force && name == "final") {  // complete: nothing is written or removed
      CHECK_NOTHROW(RunFolder(run, model, force));
    } else {
      CHECK(user_error_of([&] {
              RunFolder(run, model, force);
            }).find((run / name).string() + ": is a link to ") == 0);
    }
  }
  CHECK(moe::test::read_file(other / "step-2/config.json") == "years");
}

TEST_CASE("a link that appears during a run is not removed through", "[train]") {
  const TempDir dir;
  RunFolder run(dir / "run", dir / "model", false);
  run.begin("[train]\n", RunState::kNew);
  for (const int64_t step : {1, 2, 3}) {
    add_checkpoint(run, step);
  }
  fs::rename(run.path() / "checkpoints", dir / "other");
  fs::create_directory_symlink(dir / "other", run.path() / "checkpoints");
  CHECK_FALSE(user_error_of([&] { run.keep_newest(1); }).empty());
  CHECK_FALSE(user_error_of([&] { run.claim(run.checkpoint(3)); }).empty());
  for (const char* step : {"step-1", "step-2", "step-3"}) {
    CHECK(fs::exists(dir / "other" / step / "config.json"));
  }
}

TEST_CASE("a checkpoint to which a file was added is neither removed nor written over", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  std::string added;
  {
    RunFolder before(run, model, false);
    before.begin("[train]\n", RunState::kNew);
    for (const int64_t step : {1, 2, 3}) {
      before.claim(before.checkpoint(step));
      moe::io::StagedFolder folder(before.checkpoint(step), false);
      folder.write_text("config.json", "x");
      moe::io::write_checksums(folder.path());
      folder.commit();
    }
    added = (before.checkpoint(1) / "notes.txt").string();
    write_file(added, "years");
    before.keep_newest(1);
    CHECK(before.saved_steps() == std::vector<int64_t>{1, 3});
  }
  CHECK(user_error_of([&] { RunFolder(run, model, true); }).find(added + ": is not in the list") ==
        0);
  RunFolder again(run, model, false);
  std::vector<std::string> damaged;
  CHECK(again.newest_whole(damaged) == again.checkpoint(3));
  const std::string moved = (again.checkpoint(3) / "notes.txt").string();
  fs::rename(added, moved);
  CHECK(user_error_of([&] { again.newest_whole(damaged); }).find(moved) == 0);
  CHECK(moe::test::read_file(moved) == "years");
}

TEST_CASE("what a kill left of a checkpoint is removed when the run goes on", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model", checkpoints = run / "checkpoints";
  {
    RunFolder before(run, model, false);
    before.begin("[train]\n", RunState::kNew);
    for (const int64_t step : {10, 20}) {
      add_checkpoint(before, step);
    }
    before.claim(before.checkpoint(30));
  }
  // As after a kill in the removal of step 10, and in the write of step 30.
  write_file(checkpoints / "step-10.partial/.moe-staging", "moe staging 1\nstep-10\n");
  fs::rename(checkpoints / "step-10", checkpoints / "step-10.partial/new");
  write_file(checkpoints / "step-30.partial/.moe-staging", "moe staging 1\nstep-30\n");
  write_file(checkpoints / ".step-20.moe-staging/.moe-staging", "moe staging 1\nstep-20\n");
  write_file(checkpoints / "step-40.partial/.moe-staging", "moe staging 1\nstep-40\n");
  RunFolder again(run, model, false);
  again.begin("[train]\n", RunState::kResumable);
  CHECK(again.saved_steps() == std::vector<int64_t>{20});
  CHECK(std::distance(fs::directory_iterator(checkpoints), {}) == 2);
  CHECK(fs::exists(checkpoints / "step-40.partial"));  // the run did not begin to make it
}

TEST_CASE("a page that moe did not write is not replaced by a run", "[train]") {
  const TempDir dir;
  RunFolder(dir / "run", dir / "model", false).begin("[train]\n", RunState::kNew);
  const fs::path page = dir / "run/report.html";
  write_file(page, "<h1>mine</h1>");
  for (const bool force : {false, true}) {
    CHECK(user_error_of([&] {
            RunFolder(dir / "run", dir / "model", force);
          }).find(page.string() + ": is not a page that moe wrote") == 0);
  }
  write_file(page, "<!doctype html>\n<meta name=\"generator\" content=\"moe\">\n");
  CHECK_NOTHROW(RunFolder(dir / "run", dir / "model", true));
}

TEST_CASE("a run from before there were lists goes on with one, and is not begun anew", "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  write_file(run / "settings.toml", "[train]\n");
  write_file(run / "metrics.jsonl", "{}");
  write_file(run / "checkpoints/step-1/state.json", "{}");
  write_file(run / "checkpoints/step-2/state.json", "{}");
  write_file(run / "checkpoints/step-3/thesis", "years");
  CHECK(user_error_of([&] { RunFolder(run, model, true); }).find("is not in the list") !=
        std::string::npos);
  RunFolder again(run, model, false);
  again.begin("[train]\n", state_of(again, "[train]\n"));
  again.keep_newest(1);
  CHECK(again.saved_steps() == std::vector<int64_t>{2, 3});
}

TEST_CASE("old checkpoints go, the newest stay, and partial ones do not count", "[train]") {
  const TempDir dir;
  RunFolder run(dir / "run", dir / "model", false);
  CHECK(run.saved_steps().empty());
  CHECK_FALSE(run.last_checkpoint().has_value());
  run.begin("[train]\n", RunState::kNew);
  for (const int64_t step : {2, 4, 10, 100}) {
    add_checkpoint(run, step);
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

TEST_CASE("a run with settings of options that were removed resumes if they changed no number",
          "[train]") {
  const TempDir dir;
  const fs::path model = dir / "model";
  const auto started = [&](const std::string& name, const std::string& removed) {
    RunFolder(dir / name, model, false).begin("[train]\nsteps = 12\n" + removed, RunState::kNew);
    return RunFolder(dir / name, model, false);
  };
  const std::string now = "[train]\nsteps = 12\n";
  CHECK(state_of(started("graph", "graph = true\n"), now) == RunState::kResumable);
  CHECK(state_of(started("default", "graph = false\nexpert-products = \"auto\"\n"), now) ==
        RunState::kResumable);
  const auto error =
      user_error_of([&] { state_of(started("loop", "expert-products = \"loop\"\n"), now); });
  CHECK_THAT(error, moe::test::contains_text("expert-products was \"loop\""));
}

TEST_CASE("a run goes on under the same settings, and is refused with those that differ",
          "[train]") {
  const TempDir dir;
  const fs::path run = dir / "run", model = dir / "model";
  const std::string settings = "# moe 1\n[train]\nsteps = 12\nlr = 0.1\nkeep = 2\n";
  RunFolder(run, model, false).begin(settings, RunState::kNew);
  RunFolder again(run, model, false);
  CHECK(state_of(again, settings) == RunState::kResumable);
  CHECK(state_of(again, "# moe 2\n[train]\nlr = 0.1\nsteps = 12\nkeep = 9\nsave-every = 3\n") ==
        RunState::kResumable);
  CHECK(state_of(again, "[train]\nlr=1e-1   # as TOML has it\nsteps = 1_2\n") ==
        RunState::kResumable);
  CHECK(user_error_of([&] { state_of(again, "[train]\nsteps = 13\nclip = 1\n"); }) ==
        run.string() +
            ": the existing run has other settings (clip was not given, is 1; lr was 0.1, is not "
            "given; steps was 12, is 13); give the same settings to resume it, another -o, or "
            "--force to start "
            "over");
  CHECK(state_of(RunFolder(run, model, true), "[train]\nsteps = 13\n") == RunState::kNew);
  add_checkpoint(again, 2);
  again.begin("[train]\nsteps = 12\n", RunState::kResumable);
  CHECK(user_error_of([&] {
          RunFolder(run, model, false).begin("[train]\nsteps = 12\n", RunState::kResumable);
        }) == run.string() +
                  ": another run is writing it now; wait for it or give another output folder");
  CHECK(fs::exists(run / "checkpoints" / "step-2" / "config.json"));
  fs::create_directories(run / "final");
  CHECK(state_of(again, "[train]\nsteps = 12\n") == RunState::kDone);
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
  RunFolder run(dir / "run", dir / "model", false);
  run.begin("[train]\n", RunState::kNew);
  for (const int64_t step : {2, 4, 6, 8, 10}) {
    add_checkpoint(run, step);
  }
  run.keep_newest(2, 4);
  CHECK(run.saved_steps() == std::vector<int64_t>{4, 8, 10});
}
