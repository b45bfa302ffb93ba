// Expert choice in every command: train, inspect, route and bench accept it; commands that generate
// or score text refuse it, because the output of a token would depend on later tokens.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe::test {
namespace {

constexpr const char* kRouter = "expert-choice:cf=1";

// A tiny dense folder upcycled for expert choice, and rows to train on.
struct Fixture : TrainingFixture {
  Fixture() {
    write_training_rows(dir / "rows.jsonl", 8);
    upcycle("moe", {"--router", kRouter, "--verify"});
  }
  Args short_training(const Args& flags) const {
    return training(joined({"--steps", "3", "--micro-batch", "4"}, flags), "moe");
  }
};

}  // namespace

TEST_CASE("upcycle, inspect and train accept expert choice, also from a recipe", "[cli]") {
  const Fixture fixture;
  const Json inspected = Json::parse(succeed({"inspect", fixture.path("moe"), "--json"}).out);
  CHECK(inspected["model_type"] == "moe_expert_choice");
  CHECK(inspected["moe"]["router"] == kRouter);
  CHECK(inspected["needs_moe"] == Json{"expert-choice routing"});

  const RunResult dry = succeed(fixture.short_training({"--dry-run"}));
  CHECK_THAT(dry.out + dry.err, contains_text(kRouter));
  write_file(fixture.dir / "recipe.toml", "[train]\nrouter = \"expert-choice\"\n");
  succeed(fixture.short_training({"--config", fixture.path("recipe.toml")}));
  const Json router = Json::parse(fixture.read("run/final/config.json"))["moe"]["router"];
  CHECK(router["family"] == "expert_choice");
  CHECK(router["capacity_factor"] == 1);  // options that the recipe does not set are kept
  int steps = 0;
  for (const Json& step : json_lines(fixture.read("run/metrics.jsonl"))) {
    if (step.contains("loss")) {
      ++steps;
      CHECK(step["loss"] > 0);
      CHECK_FALSE(step.contains("load_balance_loss"));
      CHECK(step["load_max_over_mean"] == 1);
      CHECK(step["dropped_share"] == 0);
      CHECK(step["padding_share"] == 0);
    }
  }
  CHECK(steps == 3);
}

TEST_CASE("moe route and moe bench accept expert choice", "[cli]") {
  const TempDir dir;
  write_file(dir / "logits.csv", "2,1,0,-1\n1.5,.5,-.5,1\n1,.25,.75,0\n-1,0,2,1\n");
  const Args args = {"route", dir / "logits.csv", "--router", kRouter};
  check_contains(
      succeed(args).out,
      {"expert-choice:cf=1: 4 tokens, 4 experts on 1 rank, slots per expert and rank: 1\n",
       "slots        4, 4 used, 0 padding"});
  const Json json = Json::parse(succeed(joined(args, {"--json"})).out);
  CHECK(json["kind"] == "expert_choice");
  CHECK(json["expect"]["slots"] == Json::parse("[[[0],[0],[3],[1]]]"));
  CHECK(json["expect"]["drops"].empty());

  const Json bench =
      Json::parse(succeed({"bench", "layer", "--json", "--tokens", "32", "--width", "16", "--inner",
                           "12", "--experts", "4", "--repeats", "1", "--router", kRouter})
                      .out);
  CHECK(bench["layers"][0]["router"] == kRouter);
  CHECK(bench["layers"][0]["rows"] == 32);
}

TEST_CASE("evaluation and generation refuse expert choice and name an alternative", "[cli]") {
  const Fixture fixture;
  write_file(fixture.dir / "quiz.jsonl",
             R"({"question": "a", "choices": ["a", "b"], "answer": 0})");
  for (const auto& [args, alternative] : std::vector<std::pair<Args, std::string>>{
           {{"eval", fixture.path("moe"), "--tasks", fixture.path("quiz.jsonl")},
            "(--router top2)"},
           {{"generate", fixture.path("moe"), "--prompt", "a"}, "(--router top2)"},
           {fixture.short_training({"--eval-data", fixture.path("rows.jsonl")}),
            "leave --eval-data and --eval-tasks out"}}) {
    const RunResult result = run_moe(args);
    check_refused(result, "router 'expert-choice:cf=1' is for training only");
    CHECK_THAT(result.err, contains_text(alternative));
  }
}

}  // namespace moe::test
