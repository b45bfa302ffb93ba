#include "core/train/loop/plan.h"
#include "core/train/observe/evaluation.h"
#include "core/train/observe/history.h"
#include "core/train/step/gradients.h"
#include "core/train/step/training_data.h"
#include "tests/support/memory_examples.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

// A mixture, rows to train on and seven held-out rows whose first three tokens are no targets.
struct World : TrainWorld {
  World() : TrainWorld("top1+ir+fr") {
    std::string text;
    for (int row = 0; row < 7; ++row) {
      std::vector<int> ids, labels;
      for (int t = 0; t < 8 + row % 5; ++t) {
        ids.push_back(3 + (row % 4) * 5 + (t + 2) % 5);
        labels.push_back(t < 3 ? data::kNoLoss : ids.back());
      }
      text += OrderedJson{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
    }
    write_file(dir / "held.jsonl", text);
    settings.steps = 9;
  }

  void evaluate(int64_t every) {
    settings.evaluation.data = {dir / "held.jsonl"};
    settings.evaluation.every = every;
    settings.evaluation.tasks = {"quiz"};
  }

  // Trains to the end, or until step `stop_after`.
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

  std::string metrics() const { return steady_metrics(settings.run); }
  std::string weights() const { return final_weights(settings.run); }
  std::string samples() const { return read_file(settings.run / "samples.jsonl"); }
};

data::Examples make_examples(const std::vector<std::vector<int32_t>>& rows) {
  std::vector<data::Example> examples;
  for (const auto& ids : rows) {
    std::vector<int32_t> labels = ids;
    labels.front() = data::kNoLoss;
    examples.push_back({ids, labels, 0, 1});
  }
  return in_memory(std::move(examples), {"rows"});
}

}  // namespace

TEST_CASE("single_epoch_rows() holds every token once, and its last row may be short") {
  const auto examples = make_examples({{1, 2, 3}, {4, 5, 6, 7, 8}, {9, 10, 11}});
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

TEST_CASE("the held-out loss is the training loss of the same rows") {
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
  // Both sum in f32 blocks; only the division and product by the target count differ.
  CHECK(held_out.loss(llama, llama.default_routing()) ==
        Approx(sum / static_cast<double>(targets)).epsilon(1e-12));
  CHECK(held_out.description().find("7 examples; " + std::to_string(targets) +
                                    " target tokens in ") != std::string::npos);
}

TEST_CASE("evaluation does not change the training") {
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
  std::vector<Json> lines = json_lines(evaluated.metrics());
  REQUIRE(lines.size() == 10);
  CHECK(lines[0]["step"] == 0);
  CHECK(lines[0]["held_out_loss"] == *evaluations[0].held_out_loss);
  CHECK(lines[4]["held_out_loss"] == *evaluations[1].held_out_loss);
  CHECK(lines[4]["tasks"]["quiz"]["acc"] == evaluations[1].tasks.at("quiz").at("acc"));
  CHECK_FALSE(lines[5].contains("held_out_loss"));
  lines.erase(lines.begin());
  for (Json& line : lines) {
    line.erase("held_out_loss");
    line.erase("tasks");
  }
  CHECK(lines == json_lines(plain.metrics()));
}

TEST_CASE("a stopped and resumed run has the evaluations, samples and report of a whole one") {
  World whole, stopped;
  for (World* world : {&whole, &stopped}) {
    world->evaluate(2);
    world->settings.save_every = 3;
  }
  whole.train();
  stopped.train(4);  // a step that is evaluated
  stopped.train(8);
  const fs::path run = stopped.settings.run;
  const auto page_has = [&](const char* part) {
    return read_file(run / "report.html").find(part) != std::string::npos;
  };
  CHECK(page_has("not finished"));
  fs::remove_all(run / "checkpoints" / "step-8");  // later lines and samples are removed
  stopped.train();
  CHECK(stopped.metrics() == whole.metrics());
  CHECK(stopped.weights() == whole.weights());
  CHECK(stopped.samples() == whole.samples());
  CHECK(read_run_history(run / "starts.jsonl").size() == 3);
  CHECK_FALSE(page_has("not finished"));
  for (const char* part : {"held out", "Accuracy", "Experts per token", "Layer 0",
                           "Samples of text", "5 6 7", "LibTorch", "Resumed after step 4"}) {
    INFO(part);
    CHECK(page_has(part));
  }
  const History history = read_history(run);
  const auto& prompts = history.samples().prompts();
  REQUIRE(prompts.size() == 3);
  for (const auto& prompt : prompts) {
    CHECK(prompt.count == 6);  // at steps 0, 2, 4, 6, 8 and 9
    CHECK((prompt.kept.front().step == 0 && prompt.last.step == 9));
  }
  CHECK(prompts[0].prompt == "5 6 7 ");  // no tokenizer: ids, up to the first label
  CHECK_FALSE(prompts[0].last.text.empty());
}

TEST_CASE("an evaluation flag without the data that it needs is refused by name") {
  struct Case {
    const char* facts;
    void (*change)(EvaluationSettings& settings);
  };
  const Case cases[] = {{"--eval-every", [](auto& s) { s.every = 5; }},
                        {"--eval-rows", [](auto& s) { s.rows = 5; }},
                        {"--eval-limit", [](auto& s) { s.tasks_limit = 5; }},
                        {"--eval-data-dir", [](auto& s) { s.tasks_folder = "x"; }},
                        {"--eval-data none.jsonl:", [](auto& s) { s.data = {"none.jsonl:0.5"}; }}};
  TrainSettings valid;
  CHECK_NOTHROW(check_numbers(valid));
  for (const auto& [facts, change] : cases) {
    TrainSettings run;
    change(run.evaluation);
    CHECK_THAT(user_error_of([&] { check_numbers(run); }), contains_text(facts));
  }
}

TEST_CASE("by default a run evaluates ten times on 64 rows") {
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
