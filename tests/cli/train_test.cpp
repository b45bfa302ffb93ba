// moe train: output, reproducibility, resuming, warnings, invalid flags and damaged runs.

#include <set>
#include <sstream>

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe::test {
namespace {

// Trains again with run/settings.toml and checks that the final models of run/ and again/ are
// equal.
RunResult check_repeats(const TrainingFixture& fixture) {
  const auto again = succeed({"train", "--config", fixture.path("run/settings.toml"), "-o",
                              fixture.path("again"), "--force"});
  for (const char* file : {"final/config.json", "final/model.safetensors"}) {
    CHECK(fixture.read(std::string("run/") + file) == fixture.read(std::string("again/") + file));
  }
  return again;
}

// Returns the names of the complete events of a trace.
std::multiset<std::string> event_names(const std::string& text) {
  std::multiset<std::string> names;
  const Json trace = parse_json(text, "trace.json");
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") == "X") {
      CHECK(event.at("dur").get<double>() >= 0);
      names.insert(event.at("name").get<std::string>());
    }
  }
  return names;
}

RunResult train(const fs::path& where, const std::string& data = "rows.jsonl") {
  return run_moe({"train", where / "dense", "-o", where / "run", "--data", where / data,
                  "--eval-data", where / "held.jsonl", "--threads", "1", "--steps", "2",
                  "--save-every", "1", "--micro-batch", "2"});
}

// A run of two steps in dir/here whose second checkpoint and final model are removed.
struct HalfRun {
  TempDir dir;
  fs::path here = dir / "here", there = dir / "there";  // `there` does not exist
  std::string final_weights;                            // bytes of the removed final model

  HalfRun() {
    write_tiny_checkpoint(here / "dense");
    write_training_rows(here / "rows.jsonl");
    write_training_rows(here / "held.jsonl", 16, 11);
    const auto result = train(here);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    final_weights = read_file(here / "run/final/model.safetensors");
    fs::remove_all(here / "run/final");
    fs::remove_all(here / "run/checkpoints/step-2");
  }
};

TEST_CASE("moe train prints step lines on standard error and its result on standard output") {
  const TrainingFixture fixture;
  const auto result = succeed(fixture.training(
      {"--steps", "6", "--micro-batch", "2", "--global-batch", "4", "--lr", "1e-2"}));
  check_contains(result.err, {"16 examples, 96 tokens; 6 steps of 4 sequences (micro-batch 2)",
                              "step 1/6  loss ", "step 6/6  loss ", "tok/s"});
  CHECK(result.err.find('\r') == std::string::npos);  // not a terminal
  CHECK(result.out.starts_with("6 steps, loss "));
  CHECK_THAT(result.out, contains_text(fixture.path("run/final") + "\n"));
  CHECK(fs::exists(fixture.dir / "run/final/model.safetensors"));
}

TEST_CASE("settings.toml repeats a run of a dense model") {
  const TrainingFixture fixture;
  succeed(fixture.training({"--steps", "3", "--seed", "5", "--lr", "3e-3", "--warmup", "2",
                            "--optimizer-state", "bf16"}));
  CHECK_THAT(fixture.read("run/settings.toml"), contains_text("optimizer-state = \"bf16\"\n"));
  check_repeats(fixture);
  check_refused(fixture.train({"--steps", "3", "--seed", "5", "--lr", "3e-3", "--warmup", "2",
                               "--resume", "--quiet"}),
                "optimizer-state was \"bf16\", is \"fp32\"");
}

TEST_CASE("step lines of a mixture show the routing, and --json prints the result") {
  const TrainingFixture fixture;
  fixture.upcycle("moe", {"--router", "top1"});
  const auto result = succeed(
      fixture.training({"--steps", "2", "--router", "top1+ir+fr", "--cf", "0.5", "--json"}, "moe"));
  check_contains(result.err,
                 {"router top1+ir+fr:cf=0.5 on 4 logical ranks, capacity counted over the ",
                  " tokens of a micro-batch; loss = language model + 0.01 x load balance", "  aux ",
                  "  drop ", "  fill ", "  IR ", "  experts ", "  load ", "  H ", "  left "});
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    CHECK((!line.starts_with("step ") || line.size() <= 160));
  }
  const Json json = parse_json(result.out, "stdout");
  CHECK(json["steps"] == 2);
  CHECK(json["model"] == fixture.path("run/final"));
}

TEST_CASE("settings.toml repeats a run for each router stored in the folder") {
  const TrainingFixture fixture;
  const auto [stored, flags, note] = GENERATE(table<std::string, Args, std::string>(
      {{"top2:gate=none,st=off,order=score",
        {"--router", "top1:gate=selected,st=on", "--force"},
        "another gate rescales every MoE output"},
       {"relu:k=1,mult=1.5", {"--router", "relu:k=2,l1=plain", "--lambda", "0.001"}, ""},
       {"topp:0.4", {"--router", "top2:cf=inf", "--lb-coef", "0"}, "is off (coefficient 0)"}}));
  CAPTURE(stored);
  fixture.upcycle("moe", {"--router", stored});
  const auto first =
      succeed(fixture.training(joined(flags, {"--steps", "2", "--lr", "1e-2"}), "moe"));
  CHECK_THAT(first.err, contains_text(note));
  check_repeats(fixture);
  std::istringstream lines(first.err);
  std::set<std::string> warnings;
  for (std::string line; std::getline(lines, line);) {
    CHECK((!line.starts_with("warning: ") || warnings.insert(line).second));
  }
}

TEST_CASE("moe train warns of settings that are known to fail before the first step") {
  const TrainingFixture fixture;
  succeed(fixture.training(
      {"--steps", "2", "--lr", "1e-3", "--schedule", "constant", "--save-every", "1"}));
  fs::rename(fixture.dir / "run", fixture.dir / "parent");
  succeed({"upcycle", fixture.path("parent/final"), "-o", fixture.path("moe"), "--experts", "4",
           "--router", "top1:st=off", "--quiet"});
  CHECK(read_json(fixture.dir / "moe/upcycle.json")["source"]["last_learning_rate"] == 1e-3);

  for (const Args& more : {Args{"--dry-run"}, Args{}}) {
    check_contains(
        fixture.train(joined({"--steps", "1", "--lr", "0.1"}, more), "moe").err,
        {"warning: router top1:st=off learns nothing from the task",
         "warning: capacity is counted over 12 tokens per logical rank",
         "warning: --lr 0.1 is 100 times the last learning rate that the model was trained "
         "with (0.001)"});
  }
  CHECK_THAT(fixture.read("run/report.html"), contains_text("learns nothing from the task"));

  // No warning about the router's gradient if the router is not trained.
  const Args planned = {"--steps",  "2", "--lr", "1e-3", "--router", "top1:cf=inf,st=off",
                        "--dry-run"};
  CHECK_THAT(fixture.train(joined(planned, {"--train", "experts"}), "moe").err,
             !contains_text("warning: "));
  CHECK_THAT(fixture.train(joined(planned, {"--nodes", "1", "--gpus", "4"}), "moe").err,
             contains_text("learns nothing from the task"));
  CHECK_THAT(
      fixture.train({"--steps", "2", "--lr", "0.1", "--dry-run"}, "parent/checkpoints/step-1").err,
      contains_text("--lr 0.1 is 100 times"));
}

TEST_CASE("a loss that is not finite ends with exit code 1 and names the step") {
  const TrainingFixture fixture;
  const auto result = fixture.train({"--steps", "9", "--lr", "1e30", "--quiet"});
  CHECK(result.exit_code == 1);
  CHECK(result.out.empty());
  check_contains(result.err,
                 {"moe: step 2: the ", "no checkpoint was saved before (--save-every)"});
  CHECK_FALSE(fs::exists(fixture.dir / "run/final"));
}

TEST_CASE("a finished run is not repeated, and cannot be resumed with other settings") {
  const TrainingFixture fixture;
  succeed(fixture.training({"--steps", "4"}));
  const auto done = succeed(fixture.training({"--steps", "4"}));
  CHECK_THAT(done.err, contains_text("already complete ("));
  CHECK(done.out.empty());
  CHECK_THAT(fixture.train({"--steps", "5", "--resume"}).err, contains_text("steps was 4, is 5"));
  CHECK(fixture.train({"--steps", "4", "--resume", "--force"}).exit_code == 2);
}

TEST_CASE("moe train refuses invalid flags by name") {
  const TrainingFixture fixture;
  check_refused_each(fixture.training({}),
                     {{{"--schedule", "sine"}, "--schedule 'sine' is unknown; known: cosine"},
                      {{"--z-coef", "-1"}, "--z-coef"},
                      {{"--router", "top1"}, "is a dense folder; add --upcycle N"}});
  check_refused({"train", fixture.path("dense"), "-o", fixture.path("run")}, "--data");
  write_file(fixture.dir / "run/metrics.jsonl", "{}");
  check_refused(fixture.train({}), "exists and is not a run of moe train");
}

TEST_CASE("--profile writes a Chrome trace of the first steps, with every part of a model") {
  const TrainingFixture fixture;
  fixture.upcycle("moe", {"--layers", "all"});
  for (const auto& [run, flags] :
       {std::pair("plain", Args{}), {"one", {"--profile", "1"}}, {"two", {"--profile", "2"}}}) {
    succeed(
        fixture.training(joined({"--steps", "3", "--micro-batch", "1", "-q"}, flags), "moe", run));
  }
  CHECK_FALSE(fs::exists(fixture.dir / "plain/trace.json"));
  const auto one = event_names(fixture.read("one/trace.json"));
  const auto two = event_names(fixture.read("two/trace.json"));
  for (const char* part : {"routing", "permute", "experts", "combine", "attention", "projections",
                           "norm", "head", "optimizer"}) {
    INFO(part);
    CHECK(one.count(part) > 0);
    CHECK(two.count(part) == 2 * one.count(part));
  }
  CHECK(!fixture.weights("one").empty());
  CHECK((fixture.weights("one") == fixture.weights("plain")));
}

// Resuming compares the contents of the model and the data, not their paths.

TEST_CASE("a run that was moved with its model and data resumes") {
  const HalfRun half;
  const bool is_copied = GENERATE(false, true);
  if (is_copied) {  // a copy has other modification times
    fs::copy(half.here, half.there, fs::copy_options::recursive);
    fs::remove_all(half.here);
  } else {
    fs::rename(half.here, half.there);
  }
  const std::string recorded = read_file(half.there / "run/inputs.json");
  const auto result = train(half.there);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  check_contains(result.err, {"data, eval-data, model: moved since the run began, with the same "
                              "content\n",
                              "resuming from step 1"});
  CHECK(read_file(half.there / "run/final/model.safetensors") == half.final_weights);
  CHECK_THAT(read_file(half.there / "run/settings.toml"), contains_text(half.there.string()));
  CHECK((read_file(half.there / "run/inputs.json") == recorded) == !is_copied);
}

TEST_CASE("a run whose model or data have changed is not resumed, and the file is named") {
  const HalfRun half;
  const fs::path& here = half.here;
  const std::string rows = here / "rows.jsonl";
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

TEST_CASE("a run without inputs.json resumes only with the paths in settings.toml") {
  const HalfRun half;
  fs::remove(half.here / "run/inputs.json");
  std::string file_list = read_file(half.here / "run/.moe-run");
  const std::string line = "inputs.json\n";
  file_list.erase(file_list.find(line), line.size());
  write_file(half.here / "run/.moe-run", file_list);
  fs::copy(half.here, half.there, fs::copy_options::recursive);
  const auto refused = train(half.there);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("model was \"" + (half.here / "dense").string() + "\""));
  CHECK(train(half.here).exit_code == 0);
  CHECK(read_file(half.here / "run/final/model.safetensors") == half.final_weights);
  CHECK(fs::exists(half.here / "run/inputs.json"));
  CHECK_THAT(read_file(half.here / "run/.moe-run"), contains_text(line));
}

TEST_CASE("a damaged settings.toml is named and not overwritten") {
  const HalfRun half;
  const fs::path file = half.here / "run/settings.toml";
  const std::string whole = read_file(file);
  for (const std::string& broken : {whole.substr(0, whole.find(" = ", whole.size() / 2) + 2),
                                    std::string("\n"), whole + "lr = = 2\n"}) {
    write_file(file, broken);
    const auto refused = train(half.here);
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, contains_text("moe: " + file.string()) &&
                                contains_text("the file is damaged") &&
                                !contains_text("other settings"));
    CHECK(read_file(file) == broken);
  }
}

TEST_CASE("a run whose checkpoints are all damaged starts over only with --force") {
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

}  // namespace
}  // namespace moe::test
