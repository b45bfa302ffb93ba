// The whole of an evaluation with the real model, held to numbers that lm-evaluation-harness 0.4.13
// itself gave.
#include "core/eval/evaluate.h"

#include "core/base/sha256.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

// The harness's own batch 1 against batch 8 differs by up to 3e-5; the bound is the one that
// item-by-item comparisons use.
constexpr double kTolerance = 1e-3;

EvalSettings stories(std::vector<std::string> tasks) {
  EvalSettings settings;
  settings.model = test::shared_data() / "stories260K-hf";
  settings.data = test::shared_data() / "bench";
  settings.tasks = std::move(tasks);
  settings.bos = Bos::kOn;
  return settings;
}

std::string text_sha256(const Question& question) {
  std::string text = question.context;
  for (const auto& choice : question.choices) {
    text += '\0' + (" " + choice);
  }
  return sha256_hex(text).substr(0, 16);
}

TEST_CASE("five benchmarks score as lm-evaluation-harness scores them", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const Json golden =
      read_json(moe::test::source_folder() / "tests/golden/lm_eval_stories260k.json")["tasks"];
  EvalSettings settings = stories({"logiqa", "arc_easy", "arc_challenge", "piqa", "hellaswag"});
  settings.limit = 20;
  const RunReport report = evaluate(settings);
  REQUIRE(report.tasks.size() == 5);
  for (const auto& task : report.tasks) {
    const Json& items = golden.at(task.loaded.task.name);
    REQUIRE(items.size() == task.scores.size());
    for (size_t i = 0; i < items.size(); ++i) {
      CAPTURE(task.loaded.task.name, i);
      const Question& question = task.loaded.questions[i];
      CHECK(text_sha256(question) == items[i]["text_sha256"]);
      CHECK(question.gold == items[i]["gold"]);
      CHECK(task.values.at("acc")[i] == items[i]["acc"]);
      CHECK(task.values.at("acc_norm")[i] == items[i]["acc_norm"]);
      for (size_t choice = 0; choice < question.choices.size(); ++choice) {
        CHECK(task.scores[i][choice].logprob ==
              Approx(items[i]["logprobs"][choice].get<double>()).margin(kTolerance));
        CHECK(task.scores[i][choice].tokens == items[i]["tokens"][choice]);
      }
    }
  }
}

TEST_CASE("decisions do not depend on the batch size", "[eval]") {
  MOE_NEED_SHARED_DATA();
  EvalSettings settings = stories({"arc_easy"});
  settings.limit = 40;
  const RunReport reference = evaluate(settings);
  for (const int64_t batch_tokens : {1, 500}) {
    settings.batch_tokens = batch_tokens;
    const RunReport other = evaluate(settings);
    CHECK(results_json(other)["results"] == results_json(reference)["results"]);
    for (size_t i = 0; i < other.tasks[0].scores.size(); ++i) {
      for (size_t choice = 0; choice < other.tasks[0].scores[i].size(); ++choice) {
        // The harness itself moves by 3e-5 from one batch size to another.
        CHECK(other.tasks[0].scores[i][choice].logprob ==
              Approx(reference.tasks[0].scores[i][choice].logprob).margin(3e-5));
      }
    }
  }
}

TEST_CASE("notes tell of a subset and of choices longer than the window", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const test::TempDir folder;
  std::string story;
  for (int i = 0; i < 600; ++i) {
    story += " qx";  // more than one token each
  }
  test::write_file(
      folder / "long.jsonl",
      OrderedJson({{"question", "q"}, {"choices", {story, "b"}}, {"answer", 1}}).dump());
  EvalSettings settings = stories({"hellaswag", (folder / "long.jsonl").string()});
  settings.limit = 2;
  std::vector<std::string> notes;
  const RunReport report =
      evaluate(settings, {[&](const std::string& note) { notes.push_back(note); }, {}, {}});
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] ==
        "hellaswag: the file has 1000 questions, lm-evaluation-harness scores 10042: results are "
        "not comparable");
  CHECK(notes[1] ==
        "long: 1 continuation is longer than the model's window of 512 tokens, scored by its end "
        "only "
        "(lm-evaluation-harness refuses such items)");
  CHECK(report.tasks[1].cut_choices == 1);
  CHECK(report.tasks[1].scores[0][0].tokens == 512);
  CHECK(results_json(report)["moe"]["cut_choices"]["long"] == 1);
}

TEST_CASE("nothing is loaded before the output is known to be free", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const test::TempDir folder;
  test::write_file(folder / "samples_piqa.jsonl", "x");
  EvalSettings settings = stories({"piqa"});
  settings.model = folder / "no such model";
  settings.out = folder.path();
  CHECK(test::user_error_of([&] { evaluate(settings); }) ==
        (folder / "samples_piqa.jsonl").string() +
            ": is there already; give another -o, or --force to replace it");
}

}  // namespace
}  // namespace moe::eval
