// Whole evaluations; those of the published model are compared with lm-evaluation-harness 0.4.13.
#include "core/eval/evaluate.h"

#include "core/base/sha256.h"
#include "core/eval/runner.h"
#include "core/io/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

// Between batch sizes 1 and 8 the harness itself differs by up to 3e-5.
constexpr double kTolerance = 1e-3;

EvalSettings tiny_settings(std::vector<std::string> tasks) {
  EvalSettings settings;
  settings.model = tiny_model_folder();
  settings.data = bench_folder();
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
  const Json golden = read_json(source_folder() / "tests/golden/lm_eval_stories260k.json")["tasks"];
  EvalSettings settings =
      tiny_settings({"logiqa", "arc_easy", "arc_challenge", "piqa", "hellaswag"});
  settings.model = shared_data() / "stories260K-hf";
  settings.data = shared_data() / "bench";
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

TEST_CASE("notes report an incomplete file and choices longer than the window", "[eval]") {
  const TempDir folder;
  std::string story;
  for (int i = 0; i < 600; ++i) {
    story += " qx";  // more than one token each
  }
  write_file(folder / "long.jsonl",
             OrderedJson({{"question", "q"}, {"choices", {story, "b"}}, {"answer", 1}}).dump());
  EvalSettings settings = tiny_settings({"hellaswag", (folder / "long.jsonl").string()});
  settings.limit = 2;
  std::vector<std::string> notes;
  const RunReport report =
      evaluate(settings, {[&](const std::string& note) { notes.push_back(note); }});
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[0],
             contains_text("hellaswag: the file has 3 questions") && contains_text("10042"));
  CHECK_THAT(notes[1], contains_text("long: 1 continuation") && contains_text("256 tokens"));
  CHECK(report.tasks[1].cut_choices == 1);
  CHECK(report.tasks[1].scores[0][0].tokens == 256);
  CHECK(results_json(report)["moe"]["cut_choices"]["long"] == 1);
}

TEST_CASE("an existing output file is refused before the model is loaded", "[eval]") {
  const TempDir folder;
  write_file(folder / "samples_piqa.jsonl", "x");
  EvalSettings settings = tiny_settings({"piqa"});
  settings.model = folder / "no such model";
  settings.out = folder.path();
  CHECK_THAT(user_error_of([&] { evaluate(settings); }),
             contains_text((folder / "samples_piqa.jsonl").string()));
}

TEST_CASE("a model in memory has the scores of its folder", "[eval]") {
  EvalSettings settings;
  settings.model = tiny_model_folder();
  settings.tasks = {(source_folder() / "recipes/tiny/quiz.jsonl").string()};
  settings.limit = 30;
  const auto report = evaluate(settings);
  const LiveTasks tasks(settings.model, settings.tasks, "", 30);
  const auto llama = model::Llama::load(io::Checkpoint(settings.model));
  for (int again = 0; again < 2; ++again) {
    const auto means = tasks.run(llama, llama.default_routing());
    REQUIRE(means.size() == 1);
    for (const auto& [metric, mean] : report.tasks[0].metrics) {
      CHECK(means.at("quiz").at(metric).value == mean.value);
      CHECK(means.at("quiz").at(metric).standard_error == mean.standard_error);
    }
  }
}

TEST_CASE("LiveTasks refuses unknown tasks and tasks with generated answers", "[eval]") {
  const auto model = tiny_model_folder();
  CHECK(user_error_of([&] { LiveTasks(model, {"piqua"}, "", {}); }).find("piqa") !=
        std::string::npos);
  CHECK(user_error_of([&] {
          LiveTasks(model, {"bbh_zeroshot_snarks"}, bench_folder(), {});
        }).find("its answers are generated token by token") != std::string::npos);
}

}  // namespace
}  // namespace moe::eval
