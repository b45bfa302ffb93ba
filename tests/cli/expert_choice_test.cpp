// Expert choice in every command: it trains, is printed and is measured by name, and commands that
// run the model token by token refuse it.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe::test {
namespace {

constexpr const char* kRouter = "expert-choice:cf=1";

// A tiny dense folder upcycled for expert choice, and rows to train on.
struct World : TrainingWorld {
  World() {
    write_training_rows(dir / "rows.jsonl", 8);
    upcycle("moe", {"--router", kRouter, "--verify"});
  }
  Words short_training(const Words& flags) const {
    return training(joined({"--steps", "3", "--micro-batch", "4"}, flags), "moe");
  }
};

}  // namespace

TEST_CASE("expert choice upcycles, is inspected and trains from a recipe", "[cli]") {
  const World world;
  const Json inspected = Json::parse(succeed({"inspect", world.path("moe"), "--json"}).out);
  CHECK(inspected["model_type"] == "moe_expert_choice");
  CHECK(inspected["moe"]["router"] == kRouter);
  CHECK(inspected["needs_moe"] == Json{"expert-choice routing"});

  const RunResult dry = succeed(world.short_training({"--dry-run"}));
  CHECK_THAT(dry.out + dry.err, contains_text(kRouter));
  write_file(world.dir / "recipe.toml", "[train]\nrouter = \"expert-choice\"\n");
  succeed(world.short_training({"--config", world.path("recipe.toml")}));
  const Json router = Json::parse(world.read("run/final/config.json"))["moe"]["router"];
  CHECK(router["family"] == "expert_choice");
  CHECK(router["capacity_factor"] == 1);  // options that are not named stay as stored
  int steps = 0;
  for (const Json& step : json_lines(world.read("run/metrics.jsonl"))) {
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

TEST_CASE("moe route draws and prints expert choice, and moe bench measures it", "[cli]") {
  const TempDir dir;
  write_file(dir / "logits.csv", "2,1,0,-1\n1.5,.5,-.5,1\n1,.25,.75,0\n-1,0,2,1\n");
  const Words words = {"route", dir / "logits.csv", "--router", kRouter};
  check_has(succeed(words).out,
            {"expert-choice:cf=1: 4 tokens, 4 experts on 1 rank, slots per expert and rank: 1\n",
             "slots        4, 4 used, 0 padding"});
  const Json json = Json::parse(succeed(joined(words, {"--json"})).out);
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

TEST_CASE("commands that run a model token by token refuse expert choice with an alternative",
          "[cli]") {
  const World world;
  write_file(world.dir / "quiz.jsonl", R"({"question": "a", "choices": ["a", "b"], "answer": 0})");
  for (const auto& [words, alternative] : std::vector<std::pair<Words, std::string>>{
           {{"eval", world.path("moe"), "--tasks", world.path("quiz.jsonl")}, "(--router top2)"},
           {{"generate", world.path("moe"), "--prompt", "a"}, "(--router top2)"},
           {world.short_training({"--eval-data", world.path("rows.jsonl")}),
            "leave --eval-data and --eval-tasks out"}}) {
    const RunResult result = run_moe(words);
    check_refused(result, "router 'expert-choice:cf=1' is for training only");
    CHECK_THAT(result.err, contains_text(alternative));
  }
}

}  // namespace moe::test
