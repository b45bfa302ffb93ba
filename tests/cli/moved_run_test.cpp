// A run goes on wherever it, its model and its data lie by then; what decides is their content.

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

using namespace moe;
using moe::test::contains_text;
using moe::test::read_file;
using moe::test::run_moe;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

test::RunResult train(const fs::path& where, const std::string& data = "rows.jsonl") {
  return run_moe({"train", (where / "dense").string(), "-o", (where / "run").string(), "--data",
                  (where / data).string(), "--eval-data", (where / "held.jsonl").string(),
                  "--threads", "1", "--steps", "4", "--save-every", "2", "--micro-batch", "2"});
}

// A run that came to step 2 of 4 in dir/here, and what its end would have been.
struct HalfRun {
  TempDir dir;
  fs::path here = dir / "here", there = dir / "there";
  std::string end;

  HalfRun() {
    test::write_tiny_checkpoint(here / "dense");
    test::write_training_rows(here / "rows.jsonl");
    test::write_training_rows(here / "held.jsonl", 16, 11);
    const auto result = train(here);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    end = read_file(here / "run/final/model.safetensors");
    fs::remove_all(here / "run/final");
    fs::remove_all(here / "run/checkpoints/step-4");
  }
};

}  // namespace

TEST_CASE("a run that was moved with its model and data goes on", "[cli]") {
  const HalfRun half;
  bool are_times_kept = true;
  SECTION("renamed, which keeps times") { fs::rename(half.here, half.there); }
  SECTION("copied, which makes new times") {
    fs::copy(half.here, half.there, fs::copy_options::recursive);
    fs::remove_all(half.here);
    are_times_kept = false;
  }
  const std::string recorded = read_file(half.there / "run/inputs.json");
  const auto result = train(half.there);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.err,
             contains_text("data, eval-data, model: moved since the run began, with the same "
                           "content\n") &&
                 contains_text("resuming from step 2"));
  CHECK(read_file(half.there / "run/final/model.safetensors") == half.end);
  CHECK_THAT(read_file(half.there / "run/settings.toml"), contains_text(half.there.string()));
  CHECK((read_file(half.there / "run/inputs.json") == recorded) == are_times_kept);
  const auto done = train(half.there);  // and is known to be done
  CHECK_THAT(done.err, contains_text("already complete"));
}

TEST_CASE("a run whose model or data are others by now is refused with the file's name", "[cli]") {
  const HalfRun half;
  const fs::path& here = half.here;
  std::string named;
  std::string data = "rows.jsonl";
  SECTION("data under the same name") {
    test::write_training_rows(here / "rows.jsonl", 16, 12);
    named = "(data: " + (here / "rows.jsonl").string() + " is not what the run began with)";
  }
  SECTION("data elsewhere") {
    data = "others.jsonl";
    test::write_training_rows(here / data, 16, 12);
    named = "(data was [\"" + (here / "rows.jsonl").string() + "\"], is [\"" +
            (here / data).string() + "\"]: " + (here / data).string() +
            " is not what the run began with)";
  }
  SECTION("the same data with another weight") {
    data = "rows.jsonl:2";
    named = (here / "rows.jsonl").string() + " is read as data of weight 2, before it was data";
  }
  SECTION("a model of the same shapes") {
    test::TinyCheckpoint shape;
    shape.seed = 2;
    fs::remove_all(here / "dense");
    test::write_tiny_checkpoint(here / "dense", shape);
    named = "(model: " + (here / "dense/model.safetensors").string() +
            " is not what the run began with)";
  }
  const auto refused = train(here, data);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text(named));
}

TEST_CASE("a run from before contents were recorded goes on where it is, and nowhere else",
          "[cli]") {
  const HalfRun half;
  fs::remove(half.here / "run/inputs.json");
  std::string made = read_file(half.here / "run/.moe-run");
  const std::string line = "inputs.json\n";
  made.erase(made.find(line), line.size());
  write_file(half.here / "run/.moe-run", made);
  fs::copy(half.here, half.there, fs::copy_options::recursive);
  const auto refused = train(half.there);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("model was \"" + (half.here / "dense").string() + "\""));
  CHECK(train(half.here).exit_code == 0);
  CHECK(read_file(half.here / "run/final/model.safetensors") == half.end);
  CHECK(fs::exists(half.here / "run/inputs.json"));
  CHECK_THAT(read_file(half.here / "run/.moe-run"), contains_text(line));
}

TEST_CASE("a settings.toml that is damaged is said to be", "[cli]") {
  const HalfRun half;
  const fs::path file = half.here / "run/settings.toml";
  const std::string whole = read_file(file);
  const auto [broken, words] = GENERATE_COPY(
      std::pair(whole.substr(0, whole.size() / 2), std::string("breaks off: the file is damaged")),
      std::pair(std::string("\n"), std::string("has no table [train]: the file is damaged")),
      std::pair(whole + "lr = = 2\n", std::string("the file is damaged; restore it")));
  write_file(file, broken);
  const auto refused = train(half.here);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("moe: " + file.string()) && contains_text(words) &&
                              !contains_text("other settings"));
  CHECK(read_file(file) == broken);
}

TEST_CASE("a run whose every checkpoint is damaged does not begin anew by itself", "[cli]") {
  const HalfRun half;
  const fs::path checkpoint = half.here / "run/checkpoints/step-2";
  write_file(checkpoint / "config.json", "{}");
  const auto refused = train(half.here);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(
      refused.err,
      contains_text("all checkpoints are damaged (" + checkpoint.string()) &&
          contains_text("restore one from a backup, or use --force to start over at step 0"));
  CHECK(fs::exists(checkpoint));
}
