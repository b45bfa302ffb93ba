#include <cmath>

#include "core/train/loop/trainer.h"
#include "core/train/observe/evaluation.h"
#include "core/train/observe/history.h"
#include "core/train/step/gradients.h"
#include "core/train/step/training_data.h"
#include "tests/support/catch.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using moe::test::read_file;
using moe::test::TempDir;
using moe::test::user_error_of;
namespace fs = std::filesystem;

namespace {

void write_rows(const fs::path& file, int rows, int shift) {
  std::string text;
  for (int row = 0; row < rows; ++row) {
    std::vector<int> ids, labels;
    for (int t = 0; t < 8 + row % 5; ++t) {
      ids.push_back(3 + (row % 4) * 5 + (t + shift) % 5);
      labels.push_back(t < 3 ? data::kNoLoss : ids.back());
    }
    text += OrderedJson{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
  }
  test::write_file(file, text);
}

// A tiny mixture, rows to train on and rows held out.
struct World {
  TempDir dir;
  TrainSettings settings;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    write_rows(dir / "rows.jsonl", 24, 0);
    write_rows(dir / "held.jsonl", 7, 2);
    settings.model = dir / "moe";
    test::write_mixture(dir / "dense", settings.model,
                        {.router = "top1+ir+fr", .experts = 4, .ep_ranks = 2});
    settings.run = dir / "run";
    settings.data = {dir / "rows.jsonl"};
    settings.steps = 9;
    settings.micro_batch = 4;
    settings.lr = 1e-2;
  }

  void evaluate(int64_t every) {
    settings.evaluation.data = {dir / "held.jsonl"};
    settings.evaluation.every = every;
    settings.evaluation.tasks = {"quiz"};
  }

  // Trains until it is done, or until `stop_after` steps.
  std::vector<Evaluation> train(int64_t stop_after = 1000) {
    std::vector<Evaluation> evaluations;
    int64_t steps = 0;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepRecord& record) { steps = record.step; };
    callbacks.on_evaluated = [&](const Evaluation& one) { evaluations.push_back(one); };
    callbacks.stop_requested = [&] { return steps >= stop_after; };
    callbacks.evaluate_tasks = [](const model::Llama& llama, const model::RoutingOptions& routing) {
      CHECK(routing.ep_ranks == 2);
      const auto& weight = llama.parameters().front().tensor;
      return TaskScores{{"quiz", {{"acc", weight.abs().mean().item<double>()}}}};
    };
    try {
      train::train(settings, callbacks);
    } catch (const Interrupted&) {
      CHECK(steps == stop_after);
    }
    return evaluations;
  }

  // Lines of metrics.jsonl without what differs from run to run.
  std::vector<Json> metrics() const {
    std::vector<Json> lines;
    std::istringstream text(read_file(settings.run / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      lines.push_back(parse_json(line, "metrics"));
      for (const char* key : {"seconds", "tokens_per_second", "peak_memory_bytes",
                              "data_wait_seconds", "evaluation_seconds"}) {
        lines.back().erase(key);
      }
    }
    return lines;
  }
  std::string weights() const { return read_file(settings.run / "final" / "model.safetensors"); }
};

data::Examples examples_of(const std::vector<std::vector<int32_t>>& rows) {
  std::vector<data::Example> examples;
  for (const auto& ids : rows) {
    std::vector<int32_t> labels = ids;
    labels.front() = data::kNoLoss;
    examples.push_back({ids, labels, 0, 1});
  }
  return data::Examples::in_memory(std::move(examples), {"rows"});
}

}  // namespace

TEST_CASE("held-out rows hold every token once, the last one cut short", "[train]") {
  const auto examples = examples_of({{1, 2, 3}, {4, 5, 6, 7, 8}, {9, 10, 11}});
  const auto mask = GENERATE(data::PackMask::kCausal, data::PackMask::kDoc);
  data::BatchSettings settings{data::Pack::kStream, true, 4, 2, 0, mask};
  const SingleEpochRows once = single_epoch_rows(examples, settings, 0);
  CHECK((once.rows == 3 && once.available_rows == 3));
  REQUIRE(once.batches.size() == 2);
  CHECK((once.batches[0].ids == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK((once.batches[1].ids == std::vector<int64_t>{9, 10, 11}));
  CHECK((once.batches[1].targets == std::vector<int64_t>{10, 11, data::kNoLoss}));
  CHECK((once.batches[1].lengths == std::vector<int64_t>{3}));
  CHECK(once.batches[1].target_count == 2);
  const SingleEpochRows two = single_epoch_rows(examples, settings, 2);
  CHECK((two.rows == 2 && two.available_rows == 3 && two.batches.size() == 1));
  settings.pack = data::Pack::kNone;
  settings.seq_len = 8;
  const SingleEpochRows apart = single_epoch_rows(examples, settings, 0);
  CHECK((apart.batches[0].lengths == std::vector<int64_t>{3, 5}));
  CHECK(apart.batches[1].target_count == 2);
}

TEST_CASE("a last row that is cut within a packed example loses that example's rest", "[train]") {
  const auto examples = examples_of({{1, 2}, {3, 4, 5, 6, 7}});
  const data::BatchSettings settings{data::Pack::kStream, false, 4, 1, 0, data::PackMask::kDoc};
  const SingleEpochRows once = single_epoch_rows(examples, settings, 0);
  REQUIRE(once.batches.size() == 2);
  CHECK((once.batches[0].lengths == std::vector<int64_t>{2, 2}));
  CHECK((once.batches[1].ids == std::vector<int64_t>{5, 6, 7}));
  CHECK((once.batches[1].lengths == std::vector<int64_t>{3}));
}

TEST_CASE("held-out loss is the training loss of the same rows", "[train]") {
  World world;
  world.evaluate(3);
  world.settings.seq_len = 20;
  world.settings.pack = data::Pack::kStream;
  const io::Checkpoint checkpoint(world.settings.model);
  const auto llama = model::Llama::load(checkpoint);
  world.settings.evaluation = resolve_evaluation(world.settings.evaluation, 9);
  const HeldOut held_out(world.settings, checkpoint, llama.config().vocab_size);
  TrainSettings as_data = world.settings;
  as_data.data = world.settings.evaluation.data;
  std::vector<std::string> lines;
  const auto examples = read_data(
      as_data, checkpoint, llama.config().vocab_size, [](int64_t, int64_t) {}, lines);
  const SingleEpochRows once =
      single_epoch_rows(examples, {data::Pack::kStream, false, 20, 4, 0}, 0);
  double sum = 0;
  int64_t targets = 0;
  for (const auto& batch : once.batches) {
    const auto step = add_gradients(llama, {batch}, llama.default_routing(), {});
    sum += step.loss * static_cast<double>(step.target_tokens);
    targets += step.target_tokens;
  }
  CHECK(held_out.targets() == targets);
  // The same sums in f32 blocks: equal but for the division and product by the target count.
  CHECK(held_out.loss(llama, llama.default_routing()) ==
        Approx(sum / static_cast<double>(targets)).epsilon(1e-12));
  CHECK(held_out.description().find("7 examples; " + std::to_string(targets) +
                                    " target tokens in ") != std::string::npos);
}

TEST_CASE("evaluation changes no bit of the training", "[train]") {
  World plain, evaluated;
  plain.train();
  evaluated.evaluate(4);
  const auto evaluations = evaluated.train();
  CHECK(evaluated.weights() == plain.weights());
  std::vector<int64_t> steps;
  for (const auto& one : evaluations) {
    steps.push_back(one.step);
  }
  CHECK((steps == std::vector<int64_t>{0, 4, 8, 9}));
  CHECK(*evaluations.back().held_out_loss < *evaluations.front().held_out_loss);
  auto lines = evaluated.metrics();
  REQUIRE(lines.size() == 10);
  CHECK(lines[0]["step"] == 0);
  CHECK(lines[0]["held_out_loss"] == *evaluations[0].held_out_loss);
  CHECK(lines[4]["held_out_loss"] == *evaluations[1].held_out_loss);
  CHECK(lines[4]["tasks"]["quiz"]["acc"] == evaluations[1].tasks.at("quiz").at("acc"));
  CHECK_FALSE(lines[5].contains("held_out_loss"));
  lines.erase(lines.begin());
  for (auto& line : lines) {
    line.erase("held_out_loss");
    line.erase("tasks");
  }
  CHECK((lines == plain.metrics()));
}

TEST_CASE("a run that was stopped evaluates as if it never was", "[train]") {
  World whole, stopped;
  whole.evaluate(2);
  stopped.evaluate(2);
  whole.train();
  stopped.train(4);  // a step that is evaluated
  stopped.train(7);
  stopped.train();
  CHECK((stopped.metrics() == whole.metrics()));
  CHECK(stopped.weights() == whole.weights());
  CHECK(read_file(stopped.settings.run / "samples.jsonl") ==
        read_file(whole.settings.run / "samples.jsonl"));
  CHECK(read_run_history(stopped.settings.run / "starts.jsonl").size() == 3);
}

TEST_CASE("steps after the checkpoint leave metrics and samples behind no trace", "[train]") {
  World whole, killed;
  whole.evaluate(2);
  killed.evaluate(2);
  killed.settings.save_every = whole.settings.save_every = 3;
  whole.train();
  killed.train(5);
  fs::remove_all(killed.settings.run / "checkpoints" / "step-5");  // as if it was never saved
  killed.train();
  CHECK((killed.metrics() == whole.metrics()));
  CHECK(read_file(killed.settings.run / "samples.jsonl") ==
        read_file(whole.settings.run / "samples.jsonl"));
}

TEST_CASE("samples go on from the prompts of held-out data", "[train]") {
  World world;
  world.evaluate(9);
  world.train();
  std::vector<TextSample> samples;
  for_each_sample(world.settings.run / "samples.jsonl",
                  [&](const TextSample& sample) { samples.push_back(sample); });
  REQUIRE(samples.size() == 6);          // three prompts, before and after
  CHECK(samples[0].prompt == "5 6 7 ");  // no tokenizer: ids, up to the first label
  CHECK((samples[0].step == 0 && samples[3].step == 9));
  CHECK(samples[3].prompt == samples[0].prompt);
  CHECK_FALSE(samples[3].text.empty());
}

TEST_CASE("a run leaves a report with all it has", "[train]") {
  World world;
  world.evaluate(4);
  world.train(5);
  std::string page = read_file(world.settings.run / "report.html");
  CHECK(page.find("not finished") != std::string::npos);
  world.train();
  page = read_file(world.settings.run / "report.html");
  CHECK(page.find("not finished") == std::string::npos);
  for (const char* part : {"held out", "Accuracy", "Experts per token", "Layer 0",
                           "Samples of text", "5 6 7", "LibTorch", "Resumed after step 5"}) {
    INFO(part);
    CHECK(page.find(part) != std::string::npos);
  }
}

TEST_CASE("evaluation settings are checked by flag", "[train]") {
  const auto error = [](auto change) {
    EvaluationSettings settings;
    change(settings);
    TrainSettings run;
    run.evaluation = settings;
    return user_error_of([&] { check_numbers(run); });
  };
  CHECK(error([](auto&) {}).empty());
  CHECK(error([](auto& s) { s.every = 5; }) ==
        "--eval-every says how often to evaluate; give --eval-data FILE or --eval-tasks too");
  CHECK(error([](auto& s) { s.rows = 5; }) ==
        "--eval-rows says how --eval-data is evaluated; give --eval-data too");
  CHECK(error([](auto& s) { s.tasks_limit = 5; }) ==
        "--eval-limit says how --eval-tasks is evaluated; give --eval-tasks too");
  CHECK(error([](auto& s) { s.tasks_folder = "x"; }) ==
        "--eval-data-dir says how --eval-tasks is evaluated; give --eval-tasks too");
  CHECK(error([](auto& s) { s.data = {"none.jsonl:0.5"}; }) ==
        "--eval-data none.jsonl: held-out files are not mixed; leave out the weight");
}

TEST_CASE("open evaluation settings are a tenth of the run and 64 rows", "[train]") {
  EvaluationSettings settings;
  CHECK_FALSE(resolve_evaluation(settings, 100).every);
  settings.data = {"x"};
  CHECK((resolve_evaluation(settings, 100).every == 10 &&
         resolve_evaluation(settings, 3).every == 1));
  CHECK(resolve_evaluation(settings, 100).rows == 64);
  settings = resolve_evaluation(settings, 25);
  CHECK((settings.is_due(0, 25) && settings.is_due(24, 25)));
  CHECK((settings.is_due(25, 25) && !settings.is_due(23, 25)));
}

TEST_CASE("held-out data that cannot be read stop the run before it is made", "[train]") {
  World world;
  world.evaluate(2);
  world.settings.evaluation.data = {world.dir / "none.jsonl"};
  CHECK(user_error_of([&] { world.train(); }).find("none.jsonl") != std::string::npos);
  test::write_file(world.dir / "bad.jsonl", "{\"input_ids\": [99999], \"labels\": [1]}\n");
  world.settings.evaluation.data = {world.dir / "bad.jsonl"};
  CHECK(user_error_of([&] { world.train(); }).find("bad.jsonl line 1") != std::string::npos);
  CHECK_FALSE(fs::exists(world.settings.run));
}
