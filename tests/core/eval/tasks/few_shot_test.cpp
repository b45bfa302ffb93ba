// Few-shot examples.
#include "core/eval/tasks/prompt_template.h"
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

Task letters_task(ShotRule rule) {
  return {.name = "t",
          .description = "D.\n\n",
          .prompt = PromptTemplate("Q: {{q}}\nA:"),
          .choices =
              [](const OrderedJson&) {
                return std::vector<std::string>{"x", "y"};
              },
          .target = [](const OrderedJson& document) -> Target {
            return {document.at("label").get<int64_t>(), ""};
          },
          .shots = rule};
}

std::vector<Document> pool_of(int count) {
  std::vector<Document> pool;
  for (int i = 0; i < count; ++i) {
    pool.push_back({{{"q", i}, {"label", i % 2}}, "f line " + std::to_string(i + 1)});
  }
  return pool;
}

TEST_CASE("the first examples, in order, with their answers", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kFirst, false, 0, false});
  const auto pool = pool_of(3);
  ShotSampler sampler(task, pool, 2);
  const std::string before = "D.\n\nQ: 0\nA: x\n\nQ: 1\nA: y\n\n";
  CHECK(sampler.before({{"q", 0}, {"label", 0}}) == before);
  CHECK(sampler.before({{"q", 7}, {"label", 0}}) == before);
  ShotSampler none(task, pool, 0);
  CHECK(none.before({{"q", 0}}) == "D.\n\n");
}

TEST_CASE("random examples are those of one Random(1234) for all questions", "[eval]") {
  const Task task = letters_task({});
  const auto pool = pool_of(10);
  ShotSampler sampler(task, pool, 4);
  // random.Random(1234).sample(range(10), 4) is [7, 1, 0, 9].
  CHECK(sampler.before({{"q", 7}, {"label", 1}}) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 1\nA: y\n\nQ: 0\nA: x\n\nQ: 9\nA: y\n\n");
  PythonRandom random(kShotSeed);
  random.sample(10, 4);
  const auto second = random.sample(10, 4);
  CHECK(sampler.before({{"q", 7}, {"label", 1}})
            .starts_with("D.\n\nQ: " + std::to_string(second[0]) + "\n"));
}

TEST_CASE("a pool that may contain the question draws one more and omits the question", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kRandom, true, 0, false});
  const auto pool = pool_of(10);
  ShotSampler sampler(task, pool, 3);
  CHECK(sampler.before({{"q", 1}, {"label", 1}}) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 0\nA: x\n\nQ: 9\nA: y\n\n");
  ShotSampler other(task, pool, 3);
  CHECK(other.before({{"q", 20}, {"label", 1}}) ==
        "D.\n\nQ: 7\nA: y\n\nQ: 1\nA: y\n\nQ: 0\nA: x\n\n");
}

TEST_CASE("a pool that is too small and a wrong label in it are refused", "[eval]") {
  const Task task = letters_task({ShotRule::Sampler::kRandom, true, 0, false});
  const auto pool = pool_of(3);
  CHECK_THAT(test::user_error_of([&] { ShotSampler(task, pool, 3); }),
             test::contains_text("f line 1 has 3") && test::contains_text("--num-fewshot"));
  CHECK_THAT(test::user_error_of([&] {
               shot_text(task, {{{"q", 1}, {"label", 2}}, "f line 9"});
             }),
             test::contains_text("f line 9: ") && test::contains_text("number 2"));
}

TEST_CASE("an example of a single continuation is delimited, the question itself is not",
          "[eval]") {
  Task task = letters_task({});
  task.output = OutputType::kLogLikelihood;
  task.target = [](const OrderedJson&) -> Target { return {std::nullopt, " word"}; };
  CHECK(shot_text(task, {{{"q", 1}}, "w"}) == "Q: 1\nA:  word");  // the harness's two spaces
}

TEST_CASE("an example of a partial context has its choice and continuation", "[eval]") {
  Task task = letters_task({});
  task.choices_are_contexts = true;
  task.choices = [](const OrderedJson&) {
    return std::vector<std::string>{"Ann saw Bob so Ann", "Ann saw Bob so Bob"};
  };
  task.target = [](const OrderedJson&) -> Target { return {1, "left."}; };
  CHECK(shot_text(task, {{}, "w"}) == "Ann saw Bob so Bob left.");
}

}  // namespace
}  // namespace moe::eval
