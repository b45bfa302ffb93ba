// Whole evaluations; those of the published model are compared with lm-evaluation-harness 0.4.13.

#include "core/eval/evaluate.h"

#include <malloc.h>

#include <atomic>
#include <future>
#include <thread>

#include "core/base/resources.h"
#include "core/base/sha256.h"
#include "core/eval/runner.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/memory_need.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
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

// Returns a task of `count` questions with numbered contexts, or of one with `context`.
LoadedTask task_of(const std::string& context, const std::vector<std::string>& choices,
                   size_t count = 1) {
  LoadedTask loaded;
  for (size_t i = 0; i < count; ++i) {
    Question question;
    question.context = context + (count > 1 ? std::to_string(i) : "");
    question.choices = choices;
    question.where = context + ".jsonl:1";
    loaded.questions.push_back(question);
  }
  return loaded;
}

// Encodes each byte as a token; calls `look` with each text before.
TextEncoder bytes_encoder(std::function<void(std::string_view)> look) {
  return {[look = std::move(look)](std::string_view text) {
            look(text);
            return std::vector<int64_t>(text.begin(), text.end());
          },
          0, "", false, 64};
}

// A dense folder, or a mixture of 4 experts, with a tokenizer of 1024 pieces.
void write_model(const fs::path& folder, bool is_mixture) {
  ForeignCheckpoint shape;
  shape.kind = is_mixture ? Foreign::kMixtral : Foreign::kMistral;
  shape.tiny.hidden = 256;
  shape.tiny.intermediate = shape.expert_width = 704;
  shape.tiny.layers = 2;
  shape.tiny.vocab = 1024;
  shape.tiny.max_positions = 256;
  write_foreign_checkpoint(folder, shape);
  fs::copy_file(source_folder() / "recipes/tiny/model/tokenizer.model", folder / "tokenizer.model");
}

// Requests of one token each after `context` tokens of BOS.
std::vector<Request> requests_of(size_t count, size_t context) {
  std::vector<Request> requests(count);
  for (size_t i = 0; i < count; ++i) {
    requests[i].tokens.assign(context, static_cast<int64_t>(3 + i % 1000));
    requests[i].tokens.push_back(4);
    requests[i].scored = 1;
  }
  return requests;
}

uint64_t anonymous_bytes() { return system_bytes("/proc/self/status", "RssAnon"); }

// Returns the peak of anonymous memory while `work` runs, minus that before.
template <typename Work>
uint64_t peak_of(const Work& work) {
  malloc_trim(0);  // returns freed memory of earlier work
  const uint64_t before = anonymous_bytes();
  std::atomic<bool> is_done = false;
  uint64_t peak = before;
  std::thread watch([&] {
    while (!is_done) {
      peak = std::max(peak, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  work();
  is_done = true;
  watch.join();
  return peak - before;
}

TEST_CASE("five benchmarks have the scores of lm-evaluation-harness", "[eval]") {
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
  CHECK_THAT(user_error_of([&] { LiveTasks(model, {"piqua"}, "", {}); }), contains_text("piqa"));
  CHECK_THAT(user_error_of([&] { LiveTasks(model, {"bbh_zeroshot_snarks"}, bench_folder(), {}); }),
             contains_text("generating answers is too slow"));
}

TEST_CASE("a task is available while the next one is being encoded", "[eval]") {
  const std::vector<LoadedTask> tasks = {task_of("first", {"a"}), task_of("second", {"bc"})};
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<bool> second_waits = false;
  EncodedTasks encoded(bytes_encoder([&](std::string_view text) {
                         if (text.starts_with("second")) {
                           second_waits = true;
                           gone.wait();
                         }
                       }),
                       tasks);
  CHECK(encoded.at(0).requests.at(0).scored == 2);  // " a"; the second task is not encoded yet
  while (!second_waits) {
    std::this_thread::yield();  // the thread encodes the next task
  }
  go.set_value();
  CHECK(encoded.at(1).requests.at(0).scored == 3);
}

TEST_CASE("an encoding error is thrown for every task once it is known", "[eval]") {
  std::vector<LoadedTask> tasks = {task_of("first", {"a"}), task_of("second", {"b"})};
  tasks[1].questions[0].delimiter = "";
  tasks[1].questions[0].choices = {""};
  EncodedTasks encoded(bytes_encoder([](std::string_view) {}), tasks);
  const std::string late = user_error_of([&] { encoded.at(1); });
  CHECK(late.find("second.jsonl:1") != std::string::npos);
  CHECK(user_error_of([&] { encoded.at(0); }) == late);  // found by the thread
}

TEST_CASE("with routing statistics a generated task has a request of each right answer", "[eval]") {
  LoadedTask loaded = task_of("Is it?", {});
  loaded.task.output = OutputType::kGenerateUntil;
  loaded.task.generation.max_tokens = 8;
  loaded.questions.push_back(loaded.questions[0]);  // one without an answer
  loaded.questions[0].target = "yes";
  loaded.questions[0].source = "quiz";
  const TextEncoder encoder = bytes_encoder([](std::string_view) {});
  CHECK(encode_task(encoder, loaded).requests.empty());
  const EncodedTask counted = encode_task(encoder, loaded, /*counts_routing=*/true);
  CHECK(counted.prompts == encode_task(encoder, loaded).prompts);
  REQUIRE(counted.requests.size() == 1);
  const std::string text(counted.requests[0].tokens.begin(), counted.requests[0].tokens.end());
  CHECK(text == "Is it? yes");
  REQUIRE(right_answers(loaded.questions).size() == 1);
  CHECK(right_answers(loaded.questions)[0].source == "quiz");
}

// Estimated peak demand of an evaluation, against counts by hand and the measured memory.

TEST_CASE("the largest forward pass has the tokens of one batch", "[eval]") {
  const TempDir dir;
  write_model(dir / "m", /*is_mixture=*/false);
  EvalSettings settings;
  settings.model = dir / "m";
  const OpenedModel opened = open_model(settings, {});
  CHECK(request_sizes(settings, opened, requests_of(3, 10)).forward_tokens == 30);
  settings.batch_tokens = 20;
  CHECK(request_sizes(settings, opened, requests_of(3, 10)).forward_tokens == 20);
  CHECK(request_sizes(settings, opened, requests_of(3, 25)).forward_tokens == 25);  // one alone
  CHECK(request_sizes(settings, opened, std::vector<Request>()).forward_tokens == 0);

  settings.batch_tokens = 100;
  const LoadedTask few = task_of("w", {"a", "b"}, 2);
  const auto encoded =
      encode_requests(make_encoder(opened, settings.compat), text_pairs(few.questions));
  const int64_t all = request_sizes(settings, opened, encoded).forward_tokens;
  CHECK((all > 0 && all < 100));
  CHECK(request_sizes(settings, opened, {few}).forward_tokens == all);
  LoadedTask many = task_of("some words", {"a", "b"}, 500);
  CHECK(request_sizes(settings, opened, {many}).forward_tokens == 100);
  // One of many questions may be longer than the limit.
  std::string words;
  for (int i = 0; i < 150; ++i) {
    words += " word";
  }
  many.questions[300].context = words;
  CHECK(request_sizes(settings, opened, {many}).forward_tokens > 150);
  // Generated answers need the KV cache of one text.
  LoadedTask written = task_of("Say it", {"a", "b"}, 3);
  written.task.output = OutputType::kGenerateUntil;
  written.task.generation.max_tokens = 50;
  const RequestSizes asked = request_sizes(settings, opened, {written});
  CHECK(asked.forward_tokens == 0);
  CHECK((asked.prompt_tokens > 1 && asked.prompt_tokens < 20));
  settings.stats = dir / "stats.json";  // also scores the right answers, in batches
  written.questions[1].target = "yes";
  CHECK(request_sizes(settings, opened, {written}).forward_tokens > 1);
  CHECK(asked.answer_tokens == 50);
  const uint64_t weights = model::bytes_to_copy(opened.config, model::Storage::kStored, at::kCPU);
  CHECK(memory_need(settings, opened, asked).bytes ==
        weights + model::forward_bytes(opened.config, {}, asked.prompt_tokens,
                                       asked.prompt_tokens + 50, at::kCPU));
  CHECK(memory_need(settings, opened, {30}).bytes ==
        weights + model::forward_bytes(opened.config, {}, 30, 0, at::kCPU));
}

TEST_CASE("the largest forward pass of a mixture with capacity is a full routing group", "[eval]") {
  const TempDir dir;
  write_model(dir / "m", /*is_mixture=*/true);
  EvalSettings settings;
  settings.model = dir / "m";
  settings.router.router = "top2:cf=1";
  settings.force = true;
  settings.group_tokens = 50;
  const OpenedModel opened = open_model(settings, {});
  const int64_t group = group_tokens(settings, opened);
  REQUIRE(group == 50 * opened.routing.ep_ranks);
  CHECK(request_sizes(settings, opened, requests_of(3, 10)).forward_tokens == 30);
  CHECK(request_sizes(settings, opened, requests_of(100, 10)).forward_tokens == group);
  CHECK(memory_need(settings, opened, {group}).remedy.find("--group-tokens") != std::string::npos);
}

TEST_CASE("an evaluation needs at most the estimated memory and at least two thirds", "[eval]") {
  for (const bool is_mixture : {false, true}) {
    const TempDir dir;
    write_model(dir / "m", is_mixture);
    EvalSettings settings;
    settings.model = dir / "m";
    settings.batch_tokens = 8500;  // all of the requests below in one forward
    const OpenedModel opened = open_model(settings, {});
    const auto take = [&](const std::vector<Request>& requests) {
      const RequestSizes asked = request_sizes(settings, opened, requests);
      Runner runner(settings, opened, {}, asked);
      runner.run("requests", requests);
      return memory_need(settings, opened, asked).bytes;
    };
    take(requests_of(4, 100));  // memory that threads and libraries allocate once
    uint64_t need = 0;
    // At least 43 MB of activations, compared with the constant 16 MiB of the estimate.
    const uint64_t peak = peak_of([&] { need = take(requests_of(84, 100)); });
    CAPTURE(is_mixture, need, peak);
    CHECK(need >= peak);
    CHECK(need <= peak * 3 / 2);
  }
}

}  // namespace
}  // namespace moe::eval
