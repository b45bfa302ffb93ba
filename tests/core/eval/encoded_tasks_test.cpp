#include <atomic>
#include <future>

#include "core/eval/runner.h"
#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

LoadedTask task_of(const std::string& context, const std::string& choice) {
  LoadedTask loaded;
  Question question;
  question.context = context;
  question.choices = {choice};
  question.where = context + ".jsonl:1";
  loaded.questions.push_back(question);
  return loaded;
}

// Encodes each byte as a token; calls `look` with each text before.
TextEncoder bytes_encoder(std::function<void(std::string_view)> look) {
  TextEncoder encoder;
  encoder.window = 64;
  encoder.encode = [look = std::move(look)](std::string_view text) {
    look(text);
    return std::vector<int64_t>(text.begin(), text.end());
  };
  return encoder;
}

TEST_CASE("a task is available while the next one is being encoded", "[eval]") {
  const std::vector<LoadedTask> tasks = {task_of("first", "a"), task_of("second", "bc")};
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
  std::vector<LoadedTask> tasks = {task_of("first", "a"), task_of("second", "b")};
  tasks[1].questions[0].delimiter = "";
  tasks[1].questions[0].choices = {""};
  EncodedTasks encoded(bytes_encoder([](std::string_view) {}), tasks);
  const std::string late = test::user_error_of([&] { encoded.at(1); });
  CHECK(late.find("second.jsonl:1") != std::string::npos);
  CHECK(test::user_error_of([&] { encoded.at(0); }) == late);  // found by the thread
}

TEST_CASE("with routing statistics a generated task has a request of each right answer", "[eval]") {
  LoadedTask loaded = task_of("Is it?", "");
  loaded.task.output = OutputType::kGenerateUntil;
  loaded.task.generation.max_tokens = 8;
  loaded.questions[0].choices.clear();
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

}  // namespace
}  // namespace moe::eval
