// Estimated peak demand of an evaluation, against counts by hand and the measured memory.

#include <malloc.h>

#include <atomic>
#include <thread>

#include "core/base/resources.h"
#include "core/eval/runner.h"
#include "core/model/llama/memory_need.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace moe::eval {
namespace {

namespace fs = std::filesystem;

// A dense folder, or a mixture of 4 experts, with a tokenizer of 1024 pieces.
void write_model(const fs::path& folder, bool is_mixture) {
  test::ForeignCheckpoint shape;
  shape.kind = is_mixture ? test::Foreign::kMixtral : test::Foreign::kMistral;
  shape.tiny.hidden = 256;
  shape.tiny.intermediate = shape.expert_width = 704;
  shape.tiny.layers = 2;
  shape.tiny.vocab = 1024;
  shape.tiny.max_positions = 256;
  test::write_foreign_checkpoint(folder, shape);
  fs::copy_file(test::source_folder() / "recipes/tiny/model/tokenizer.model",
                folder / "tokenizer.model");
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

}  // namespace

TEST_CASE("the largest forward pass has the tokens of one batch", "[eval]") {
  const test::TempDir dir;
  write_model(dir / "m", /*is_mixture=*/false);
  EvalSettings settings;
  settings.model = dir / "m";
  const OpenedModel opened = open_model(settings, {});
  CHECK(request_sizes(settings, opened, requests_of(3, 10)).forward_tokens == 30);
  settings.batch_tokens = 20;
  CHECK(request_sizes(settings, opened, requests_of(3, 10)).forward_tokens == 20);
  CHECK(request_sizes(settings, opened, requests_of(3, 25)).forward_tokens == 25);  // one alone
  CHECK(request_sizes(settings, opened, std::vector<Request>()).forward_tokens == 0);

  const auto task_of = [](size_t questions, const std::string& context) {
    LoadedTask loaded;
    for (size_t i = 0; i < questions; ++i) {
      Question question;
      question.context = context + std::to_string(i);
      question.choices = {"a", "b"};
      loaded.questions.push_back(question);
    }
    return loaded;
  };
  settings.batch_tokens = 100;
  const LoadedTask few = task_of(2, "w");
  const auto encoded =
      encode_requests(make_encoder(opened, settings.compat), text_pairs(few.questions));
  const int64_t all = request_sizes(settings, opened, encoded).forward_tokens;
  CHECK((all > 0 && all < 100));
  CHECK(request_sizes(settings, opened, {few}).forward_tokens == all);
  CHECK(request_sizes(settings, opened, {task_of(500, "some words")}).forward_tokens == 100);
  // One of many questions may be longer than the limit.
  LoadedTask mixed = task_of(500, "some words");
  std::string words;
  for (int i = 0; i < 150; ++i) {
    words += " word";
  }
  mixed.questions[300].context = words;
  CHECK(request_sizes(settings, opened, {mixed}).forward_tokens > 150);
  // Generated answers need the KV cache of one text.
  LoadedTask written = task_of(3, "Say it");
  written.task.output = OutputType::kGenerateUntil;
  written.task.generation.max_tokens = 50;
  const RequestSizes asked = request_sizes(settings, opened, {written});
  CHECK(asked.forward_tokens == 0);
  CHECK((asked.prompt_tokens > 1 && asked.prompt_tokens < 20));
  CHECK(asked.answer_tokens == 50);
  const uint64_t weights = model::bytes_to_copy(opened.config, model::Storage::kStored, at::kCPU);
  CHECK(memory_need(settings, opened, asked).bytes ==
        weights + model::forward_bytes(opened.config, {}, asked.prompt_tokens,
                                       asked.prompt_tokens + 50, at::kCPU));
  CHECK(memory_need(settings, opened, {30}).bytes ==
        weights + model::forward_bytes(opened.config, {}, 30, 0, at::kCPU));
}

TEST_CASE("the largest forward pass of a mixture with capacity is a full routing group", "[eval]") {
  const test::TempDir dir;
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
    const test::TempDir dir;
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

}  // namespace moe::eval
