// A run resumes after it, its model and its data have been moved: contents are compared, not paths.

#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

RunResult train(const fs::path& where, const std::string& data = "rows.jsonl") {
  return run_moe({"train", (where / "dense").string(), "-o", (where / "run").string(), "--data",
                  (where / data).string(), "--eval-data", (where / "held.jsonl").string(),
                  "--threads", "1", "--steps", "2", "--save-every", "1", "--micro-batch", "2"});
}

// A run of two steps in dir/here without its second checkpoint, and its final weights.
struct HalfRun {
  TempDir dir;
  fs::path here = dir / "here", there = dir / "there";
  std::string end;

  HalfRun() {
    write_tiny_checkpoint(here / "dense");
    write_training_rows(here / "rows.jsonl");
    write_training_rows(here / "held.jsonl", 16, 11);
    const auto result = train(here);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    end = read_file(here / "run/final/model.safetensors");
    fs::remove_all(here / "run/final");
    fs::remove_all(here / "run/checkpoints/step-2");
  }
};

}  // namespace

TEST_CASE("a run that was moved with its model and data resumes", "[cli]") {
  const HalfRun half;
  const bool is_copied = GENERATE(false, true);
  if (is_copied) {  // changes the times
    fs::copy(half.here, half.there, fs::copy_options::recursive);
    fs::remove_all(half.here);
  } else {
    fs::rename(half.here, half.there);
  }
  const std::string recorded = read_file(half.there / "run/inputs.json");
  const auto result = train(half.there);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  check_has(result.err, {"data, eval-data, model: moved since the run began, with the same "
                         "content\n",
                         "resuming from step 1"});
  CHECK(read_file(half.there / "run/final/model.safetensors") == half.end);
  CHECK_THAT(read_file(half.there / "run/settings.toml"), contains_text(half.there.string()));
  CHECK((read_file(half.there / "run/inputs.json") == recorded) == !is_copied);
}

TEST_CASE("a run whose model or data have changed is refused with the file's name", "[cli]") {
  const HalfRun half;
  const fs::path& here = half.here;
  const std::string rows = (here / "rows.jsonl").string();
  const std::string changed = " is not what the run began with";

  write_training_rows(here / "others.jsonl", 16, 12);
  const auto elsewhere = train(here, "others.jsonl");
  CHECK(elsewhere.exit_code == 2);
  CHECK_THAT(elsewhere.err,
             contains_text(rows) && contains_text((here / "others.jsonl").string() + changed));
  CHECK_THAT(train(here, "rows.jsonl:2").err,
             contains_text(rows + " is read as data of weight 2, before it was data"));

  fs::rename(here / "others.jsonl", rows);
  CHECK_THAT(train(here).err, contains_text("(data: " + rows + changed));

  write_training_rows(rows);
  fs::remove_all(here / "dense");
  write_tiny_checkpoint(here / "dense", {.seed = 2});
  const auto other_model = train(here);
  CHECK(other_model.exit_code == 2);
  CHECK_THAT(other_model.err,
             contains_text("(model: " + (here / "dense/model.safetensors").string() + changed));
}

TEST_CASE("a run without recorded contents resumes only at its recorded paths", "[cli]") {
  const HalfRun half;
  fs::remove(half.here / "run/inputs.json");
  std::string made = read_file(half.here / "run/.moe-run");
  const std::string line = "inputs.json\n";
  made.erase(made.find(line), line.size());
  write_file(half.here / "run/.moe-run", made);
  fs::copy(half.here, half.there, fs::copy_options::recursive);
  const auto refused = train(half.there);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("model was \"" + (half.here / "dense").string() + "\""));
  CHECK(train(half.here).exit_code == 0);
  CHECK(read_file(half.here / "run/final/model.safetensors") == half.end);
  CHECK(fs::exists(half.here / "run/inputs.json"));
  CHECK_THAT(read_file(half.here / "run/.moe-run"), contains_text(line));
}

TEST_CASE("a damaged settings.toml is named and not overwritten", "[cli]") {
  const HalfRun half;
  const fs::path file = half.here / "run/settings.toml";
  const std::string whole = read_file(file);
  for (const std::string& broken :
       {whole.substr(0, whole.size() / 2), std::string("\n"), whole + "lr = = 2\n"}) {
    write_file(file, broken);
    const auto refused = train(half.here);
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, contains_text("moe: " + file.string()) &&
                                contains_text("the file is damaged") &&
                                !contains_text("other settings"));
    CHECK(read_file(file) == broken);
  }
}

TEST_CASE("a run whose checkpoints are all damaged starts over only with --force", "[cli]") {
  const HalfRun half;
  const fs::path checkpoint = half.here / "run/checkpoints/step-1";
  write_file(checkpoint / "config.json", "{}");
  const auto refused = train(half.here);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(
      refused.err,
      contains_text("all checkpoints are damaged (" + checkpoint.string()) &&
          contains_text("restore one from a backup, or use --force to start over at step 0"));
  CHECK(fs::exists(checkpoint));
}
