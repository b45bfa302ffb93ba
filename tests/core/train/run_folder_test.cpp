#include "core/train/checkpoint/run_folder.h"

#include <chrono>

#include "core/io/checksums.h"
#include "core/io/staged_folder.h"
#include "core/train/checkpoint/inputs.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::train;
using namespace moe::test;

namespace {

struct World {
  TempDir dir;
  fs::path run = dir / "run", model = dir / "model";

  RunFolder begin() const {
    RunFolder folder(run, model, false);
    folder.begin("[train]\n", RunState::kNew);
    return folder;
  }
  std::string error(bool force, const std::vector<fs::path>& inputs = {}) const {
    return user_error_of([&] { RunFolder(run, model, force, inputs); });
  }
};

void add_checkpoint(const RunFolder& run, int64_t step) {
  run.claim(run.checkpoint(step));
  write_file(run.checkpoint(step) / "config.json", "x");
}

// State of a run whose model and data are compared by path only.
RunState run_state(const RunFolder& run, const std::string& settings_toml) {
  Inputs no_inputs;
  std::vector<std::string> notes;
  return run.state(settings_toml, no_inputs, notes);
}

struct InputsWorld {
  TempDir dir;
  TrainSettings settings;

  InputsWorld() {
    write_file(dir / "model/config.json", "{}");
    write_file(dir / "model/model.safetensors", std::string(size_t{9} << 20, 'w'));
    write_file(dir / "model/README.md", "not of the model");
    write_file(dir / "a.jsonl", "one");
    write_file(dir / "b.txt.gz", "two");
    settings.model = dir / "model";
    settings.data = {dir / "a.jsonl", dir / "b.txt.gz"};
    settings.evaluation.tasks = {"piqa", (dir / "a.jsonl").string()};
  }

  // Writes the inputs as a run does and reads them as a resumed run does.
  Inputs record() const {
    Inputs inputs = find_inputs(settings);
    write_file(dir / "inputs.json", to_json(inputs));
    return *read_inputs(dir / "inputs.json");
  }
};

// Returns a line per key that differs.
std::string differences(const Inputs& before, const InputsWorld& world) {
  Inputs now = find_inputs(world.settings);
  std::string text;
  for (auto& [key, files] : now) {
    if (const auto difference = find_difference(before.at(key), files)) {
      text += key + ": " + difference->substr(difference->rfind('/') + 1) + "\n";
    }
  }
  return text;
}

void set_time(const fs::path& file, int seconds) {
  fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::seconds(seconds));
}

}  // namespace

TEST_CASE("a folder that is not a run, a file and the parent of the model are refused as a run") {
  const World world;
  CHECK(world.error(false).empty());
  fs::create_directories(world.run);
  CHECK(world.error(false).empty());  // empty
  for (const char* left : {".moe-run", ".moe-run.partial-abc123", "settings.toml.partial-abc123"}) {
    write_file(world.run / left, "moe run 1\n");  // of a run that was killed before settings.toml
  }
  CHECK(world.error(false).empty());
  write_file(world.run / "mine.txt", "{}");
  CHECK_THAT(world.error(false), contains_text(world.run.string()) && contains_text("--force"));
  CHECK(world.error(true).empty());
  for (const fs::path& model : {world.run / "final", world.run}) {
    CHECK_THAT(user_error_of([&] { RunFolder(world.run, model, true); }),
               contains_text(model.string()));
  }
  CHECK_THAT(user_error_of([&] { RunFolder(world.run / "mine.txt", world.model, true); }),
             contains_text((world.run / "mine.txt").string()));
}

TEST_CASE("starting over removes only what the previous run made") {
  const World world;
  const fs::path& run = world.run;
  {
    const RunFolder before = world.begin();
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
  RunFolder(run, world.model, true).begin("[train]\nsteps = 3\n", RunState::kNew);
  CHECK_FALSE(fs::exists(run / "final"));
  CHECK_FALSE(fs::exists(run / "checkpoints/step-2"));
  CHECK_FALSE(fs::exists(run / "metrics.jsonl"));
  CHECK(read_file(run / "settings.toml") == "[train]\nsteps = 3\n");
  for (const auto& file : others) {
    INFO(file);
    CHECK(read_file(run / file) == "years");
  }
}

TEST_CASE("--force removes nothing that .moe-run does not list") {
  const World world;
  write_file(world.run / "mine.txt", "years");
  const std::string name =
      GENERATE("settings.toml", "metrics.jsonl", "samples.jsonl", "starts.jsonl", "report.html",
               "trace.json", "final/thesis", "checkpoints/step-4/thesis", "final.partial/thesis",
               "checkpoints/step-4.partial/thesis");
  write_file(world.run / name, "years");
  SECTION("without .moe-run") {}
  SECTION("with a .moe-run of another format") {
    write_file(world.run / ".moe-run", "moe run 2\nsettings.toml\nmetrics.jsonl\nfinal\n");
  }
  INFO(name);
  CHECK(world.error(true).find((world.run / fs::path(name).parent_path()).string()) == 0);
  CHECK(read_file(world.run / name) == "years");
}

TEST_CASE("a hostile .moe-run removes nothing that runs do not make") {
  const World world;
  const std::vector<fs::path> others = {world.dir / "thesis", world.run / "mine",
                                        world.run / "checkpoints/best/thesis"};
  for (const auto& file : others) {
    write_file(file, "years");
  }
  write_file(world.run / ".moe-run",
             "moe run 1\n../thesis\nmine\ncheckpoints\ncheckpoints/best\ncheckpoints/step-1/.."
             "\ncheckpoints/step-01\n.\n\n/\n" +
                 (world.dir / "thesis").string() + "\n");
  RunFolder(world.run, world.model, true).begin("[train]\n", RunState::kNew);
  for (const auto& file : others) {
    CHECK(fs::exists(file));
  }
}

TEST_CASE("an input inside a folder that the run may remove is refused") {
  const World world;
  const RunFolder before = world.begin();
  add_checkpoint(before, 2);
  const fs::path data = before.checkpoint(2) / "data.jsonl";
  write_file(data, "years");
  write_file(world.run / "other.jsonl", "years");
  fs::create_symlink(data, world.dir / "link");
  for (const bool force : {true, false}) {  // without --force --keep may remove the checkpoint
    for (const fs::path& input : {data, world.dir / "link"}) {
      CHECK_THAT(world.error(force, {input}), contains_text(before.checkpoint(2).string() + ": ") &&
                                                  contains_text(input.string()));
    }
    CHECK(world.error(force, {world.run / "other.jsonl", world.dir / "elsewhere"}).empty());
  }
  const fs::path here = fs::current_path();
  CHECK_THAT(user_error_of([&] { RunFolder(here, world.model, true); }),
             contains_text(here.string() + ": "));
}

TEST_CASE("a checkpoint of another program is neither removed nor overwritten") {
  const World world;
  const RunFolder run = world.begin();
  for (const int64_t step : {1, 3}) {
    add_checkpoint(run, step);
  }
  write_file(run.checkpoint(2) / "config.json", "years");
  run.keep_newest(1);
  run.remove_checkpoint(2);
  CHECK(run.saved_steps() == std::vector<int64_t>{2, 3});
  CHECK_THAT(user_error_of([&] { run.claim(run.checkpoint(2)); }),
             contains_text(run.checkpoint(2).string() + ": ") &&
                 contains_text((world.run / ".moe-run").string()));
  CHECK_NOTHROW(run.claim(run.checkpoint(3)));
}

TEST_CASE("a run does not write or remove through links") {
  const World world;
  add_checkpoint(world.begin(), 2);
  const fs::path other = world.dir / "other";
  write_file(other / "theirs", "years");
  write_file(other / "step-2/config.json", "years");
  const std::string name = GENERATE("metrics.jsonl", "settings.toml", "starts.jsonl", "checkpoints",
                                    "checkpoints/step-2", "final");
  fs::remove_all(world.run / name);
  const fs::path target = name == "checkpoints"          ? other
                          : name == "checkpoints/step-2" ? other / "step-2"
                          : name == "final"              ? other / "step-2"
                                                         : other / "theirs";
  fs::create_symlink(target, world.run / name);
  for (const bool force : {false, true}) {
    if (!force && name == "final") {  // a complete run: nothing is written or removed
      CHECK(world.error(force).empty());
    } else {
      CHECK(world.error(force).find((world.run / name).string() + ": is a link to ") == 0);
    }
  }
  CHECK(read_file(other / "theirs") == "years");
  CHECK(read_file(other / "step-2/config.json") == "years");
}

TEST_CASE("a checkpoint folder replaced by a link during a run is not followed") {
  const World world;
  const RunFolder run = world.begin();
  for (const int64_t step : {1, 2, 3}) {
    add_checkpoint(run, step);
  }
  fs::rename(run.path() / "checkpoints", world.dir / "other");
  fs::create_directory_symlink(world.dir / "other", run.path() / "checkpoints");
  CHECK_FALSE(user_error_of([&] { run.keep_newest(1); }).empty());
  CHECK_FALSE(user_error_of([&] { run.claim(run.checkpoint(3)); }).empty());
  for (const char* step : {"step-1", "step-2", "step-3"}) {
    CHECK(fs::exists(world.dir / "other" / step / "config.json"));
  }
}

TEST_CASE("a checkpoint with an added file is neither removed nor overwritten") {
  const World world;
  std::string added;
  {
    const RunFolder before = world.begin();
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
  CHECK(world.error(true).find(added + ": ") == 0);
  const RunFolder again(world.run, world.model, false);
  std::vector<std::string> damaged;
  CHECK(again.newest_whole(damaged) == again.checkpoint(3));
  const std::string moved = (again.checkpoint(3) / "notes.txt").string();
  fs::rename(added, moved);
  CHECK(user_error_of([&] { again.newest_whole(damaged); }).find(moved) == 0);
  CHECK(read_file(moved) == "years");
}

TEST_CASE("a resumed run removes what a kill left of its checkpoints and files") {
  const World world;
  const fs::path checkpoints = world.run / "checkpoints";
  {
    const RunFolder before = world.begin();
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
  write_file(world.run / ".moe-run.partial-abc123", "");
  write_file(world.run / "mine.partial-abc123", "");
  RunFolder again(world.run, world.model, false);
  again.begin("[train]\n", RunState::kResumable);
  CHECK(again.saved_steps() == std::vector<int64_t>{20});
  CHECK(std::distance(fs::directory_iterator(checkpoints), {}) == 2);
  CHECK(fs::exists(checkpoints / "step-40.partial"));  // step 40 is not in .moe-run
  CHECK_FALSE(fs::exists(world.run / ".moe-run.partial-abc123"));
  CHECK(fs::exists(world.run / "mine.partial-abc123"));
}

TEST_CASE("a run does not replace a report.html that moe did not write") {
  const World world;
  world.begin();
  const fs::path page = world.run / "report.html";
  write_file(page, "<h1>mine</h1>");
  for (const bool force : {false, true}) {
    CHECK(world.error(force).find(page.string() + ": ") == 0);
  }
  write_file(page, "<!doctype html>\n<meta name=\"generator\" content=\"moe\">\n");
  CHECK(world.error(true).empty());
}

TEST_CASE("a run without .moe-run resumes with a new list, and --force does not start it over") {
  const World world;
  write_file(world.run / "settings.toml", "[train]\n");
  write_file(world.run / "metrics.jsonl", "{}");
  write_file(world.run / "checkpoints/step-1/state.json", "{}");
  write_file(world.run / "checkpoints/step-2/state.json", "{}");
  write_file(world.run / "checkpoints/step-3/thesis", "years");
  CHECK_FALSE(world.error(true).empty());
  RunFolder again(world.run, world.model, false);
  again.begin("[train]\n", run_state(again, "[train]\n"));
  again.keep_newest(1);
  CHECK(again.saved_steps() == std::vector<int64_t>{2, 3});
}

TEST_CASE("keep_newest() removes old checkpoints except multiples of keep-every") {
  const World world;
  CHECK_FALSE(RunFolder(world.run, world.model, false).last_checkpoint().has_value());
  const RunFolder run = world.begin();
  CHECK(run.saved_steps().empty());
  for (const int64_t step : {2, 4, 6, 8, 10, 100}) {
    add_checkpoint(run, step);
  }
  write_file(run.path() / "checkpoints" / "step-200.partial" / "config.json", "x");
  write_file(run.path() / "checkpoints" / "step-" / "config.json", "x");
  CHECK(run.saved_steps() == std::vector<int64_t>{2, 4, 6, 8, 10, 100});
  run.keep_newest(2, 4);
  CHECK(run.saved_steps() == std::vector<int64_t>{4, 8, 10, 100});
  run.keep_newest(2);
  CHECK(run.saved_steps() == std::vector<int64_t>{10, 100});
  run.keep_newest(5);
  run.remove_checkpoint(100);
  run.remove_checkpoint(77);
  CHECK(run.last_checkpoint() == run.checkpoint(10));
}

TEST_CASE("settings of removed options do not prevent a resume unless they change the numbers") {
  struct Case {
    const char* removed;
    bool is_resumable;
  };
  for (const auto& [removed, is_resumable] :
       {Case{"graph = true\n", true}, Case{"graph = false\nexpert-products = \"auto\"\n", true},
        Case{"expert-products = \"loop\"\n", false}}) {
    CAPTURE(removed);
    const World world;
    const std::string now = "[train]\nsteps = 12\n";
    RunFolder(world.run, world.model, false).begin(now + removed, RunState::kNew);
    const RunFolder again(world.run, world.model, false);
    if (is_resumable) {
      CHECK(run_state(again, now) == RunState::kResumable);
    } else {
      CHECK_THAT(user_error_of([&] { run_state(again, now); }),
                 contains_text("expert-products was \"loop\""));
    }
  }
}

TEST_CASE("a run resumes with equal settings and is refused with a list of different ones") {
  const World world;
  RunFolder(world.run, world.model, false)
      .begin("# moe 1\n[train]\nsteps = 12\nlr = 0.1\nkeep = 2\n", RunState::kNew);
  RunFolder again(world.run, world.model, false);
  for (const char* settings : {"# moe 1\n[train]\nsteps = 12\nlr = 0.1\nkeep = 2\n",
                               "# moe 2\n[train]\nlr = 0.1\nsteps = 12\nkeep = 9\nsave-every = 3\n",
                               "[train]\nlr=1e-1   # as TOML has it\nsteps = 1_2\n"}) {
    CHECK(run_state(again, settings) == RunState::kResumable);
  }
  CHECK_THAT(user_error_of([&] { run_state(again, "[train]\nsteps = 13\nclip = 1\n"); }),
             contains_text(world.run.string()) && contains_text("clip was not given, is 1") &&
                 contains_text("lr was 0.1, is not given") && contains_text("steps was 12, is 13"));
  CHECK(run_state(RunFolder(world.run, world.model, true), "[train]\nsteps = 13\n") ==
        RunState::kNew);
  add_checkpoint(again, 2);
  again.begin("[train]\nsteps = 12\n", RunState::kResumable);
  CHECK_THAT(user_error_of([&] {
               RunFolder(world.run, world.model, false)
                   .begin("[train]\nsteps = 12\n", RunState::kResumable);
             }),
             contains_text(world.run.string() + ": another run"));
  CHECK(fs::exists(world.run / "checkpoints" / "step-2" / "config.json"));
  fs::create_directories(world.run / "final");
  CHECK(run_state(again, "[train]\nsteps = 12\n") == RunState::kDone);
}

TEST_CASE("the newest undamaged checkpoint is found, and damaged ones are named") {
  const World world;
  const RunFolder run(world.run, world.model, false);
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
  CHECK(damaged[0].find(run.checkpoint(6).string() + ": config.json") == 0);
}

// Comparison of the inputs of a run: by size and time, and by content if those differ.

TEST_CASE("inputs are the files of the model, data files and tasks") {
  const InputsWorld world;
  Inputs inputs = world.record();
  std::string text;
  for (const auto& [key, files] : inputs) {
    text += key + ":";
    for (const auto& file : files) {
      text += " " + file.role + (file.digest.empty() ? "" : "*");
    }
    text += "\n";
  }
  CHECK(text ==
        "data: data* text*\neval-data:\neval-data-dir:\neval-tasks: piqa a.jsonl*\n"
        "model: config.json* model.safetensors*\n");
  CHECK(inputs.at("data")[0].bytes == 3);
}

TEST_CASE("a file with equal size and time is not read, other files are compared by content") {
  const InputsWorld world;
  const Inputs before = world.record();
  CHECK(differences(before, world).empty());
  const fs::path file = world.dir / "a.jsonl";
  const auto time = fs::last_write_time(file);
  write_file(file, "One");
  fs::last_write_time(file, time);
  CHECK(differences(before, world).empty());  // taken to be the same
  set_time(file, 5);
  CHECK(differences(before, world) ==
        "data: a.jsonl is not what the run began with\n"
        "eval-tasks: a.jsonl is not what the run began with\n");
  write_file(file, "one");
  set_time(file, 9);
  CHECK(differences(before, world).empty());
}

TEST_CASE("a changed byte of a sample, size or file of the model is a difference") {
  const InputsWorld world;
  const Inputs before = world.record();
  const fs::path weights = world.dir / "model/model.safetensors";
  std::string bytes(size_t{9} << 20, 'w');
  bytes[(size_t{8} << 20) + 4095] = 'v';  // the last byte of the last sample
  write_file(weights, bytes);
  set_time(weights, 5);
  CHECK(differences(before, world) == "model: model.safetensors is not what the run began with\n");
  write_file(weights, bytes + "v");
  CHECK(differences(before, world) == "model: model.safetensors is not what the run began with\n");
  write_file(world.dir / "model/tokenizer.json", "{}");
  CHECK(differences(before, world) == "model: there were 2 files, there are 3\n");
  fs::remove(world.dir / "model/config.json");
  CHECK(differences(before, world) ==
        "model: model.safetensors is read as model.safetensors, before it was config.json\n");
}

TEST_CASE("an invalid inputs.json is ignored") {
  const TempDir dir;
  CHECK_FALSE(read_inputs(dir / "inputs.json"));
  for (const char* text : {"", "[]", "{\"data\": [{}]}", "{\"data\": 5", "{\"data\": [7]}"}) {
    write_file(dir / "inputs.json", text);
    CHECK_FALSE(read_inputs(dir / "inputs.json"));
  }
}
