// Expert choice through every command: it trains and is shown, measured and planned by name, and
// what would ask the model refuses it.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* kRouter = "expert-choice:cf=1";
constexpr const char* kRefusal = "router 'expert-choice:cf=1' is for training only: experts choose";

// A tiny dense folder upcycled for expert choice, and rows to train on.
struct World {
  TempDir dir;

  World() {
    write_tiny_checkpoint(dir / "dense");
    std::string rows;
    for (int row = 0; row < 8; ++row) {
      std::vector<int> ids;
      for (int t = 0; t < 12; ++t) {
        ids.push_back(3 + (row % 4) * 5 + t % 5);
      }
      rows += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    write_file(dir / "rows.jsonl", rows);
    run({"upcycle", dense(), "-o", moe(), "--experts", "4", "--router", kRouter, "--verify"});
  }

  std::string dense() const { return (dir / "dense").string(); }
  std::string moe() const { return (dir / "moe").string(); }

  // Words of a run of training.
  std::vector<std::string> train(std::vector<std::string> words) const {
    words.insert(words.begin(), {"train", moe(), "--data", (dir / "rows.jsonl").string(), "-o",
                                 (dir / "run").string(), "--steps", "3", "--micro-batch", "4"});
    return words;
  }

  static std::string run(const std::vector<std::string>& words) {
    const RunResult result = run_moe(words);
    INFO(words[0] << ": " << result.err);
    REQUIRE(result.exit_code == 0);
    return result.out + result.err;
  }

  static void check_refused(const std::vector<std::string>& words, const std::string& part) {
    const RunResult result = run_moe(words);
    INFO(words[0] << ": " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, kRefusal));
    CHECK(contains(result.err, part));
  }
};

}  // namespace

TEST_CASE("expert choice upcycles, is inspected and trains from a recipe", "[cli]") {
  const World world;
  const Json inspected = Json::parse(World::run({"inspect", world.moe(), "--json"}));
  CHECK(inspected["model_type"] == "moe_expert_choice");
  CHECK(inspected["moe"]["router"] == kRouter);
  CHECK(inspected["needs_moe"] == Json{"expert-choice routing"});

  const std::string dry = World::run(world.train({"--dry-run"}));
  CHECK(contains(dry, kRouter));
  write_file(world.dir / "recipe.toml", "[train]\nrouter = \"expert-choice\"\n");
  const std::string trained =
      World::run(world.train({"--config", (world.dir / "recipe.toml").string()}));
  const Json stored = Json::parse(read_file(world.dir / "run/final/config.json"));
  CHECK(stored["moe"]["router"]["family"] == "expert_choice");
  CHECK(stored["moe"]["router"]["capacity_factor"] == 1);  // what is not named stays as stored
  std::istringstream metrics(read_file(world.dir / "run/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(metrics, line);) {
    const Json step = Json::parse(line);
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

TEST_CASE("expert choice is drawn, printed as JSON and measured", "[cli]") {
  const TempDir dir;
  write_file(dir / "logits.csv", "2,1,0,-1\n1.5,.5,-.5,1\n1,.25,.75,0\n-1,0,2,1\n");
  const std::string logits = (dir / "logits.csv").string();
  const std::string table = World::run({"route", logits, "--router", kRouter});
  CHECK(contains(
      table, "expert-choice:cf=1: 4 tokens, 4 experts on 1 rank, slots per expert and rank: 1\n"));
  CHECK(contains(table, "slots        4, 4 used, 0 padding"));
  const std::string answer = World::run({"route", logits, "--router", kRouter, "--json"});
  const Json json = Json::parse(answer);
  CHECK(json["kind"] == "expert_choice");
  CHECK(json["expect"]["slots"] == Json::parse("[[[0],[0],[3],[1]]]"));
  CHECK(json["expect"]["drops"].empty());

  const Json bench = Json::parse(
      World::run({"bench", "layer", "--json", "--tokens", "32", "--width", "16", "--inner", "12",
                  "--experts", "4", "--repeats", "1", "--router", kRouter}));
  CHECK(bench["layers"][0]["router"] == kRouter);
  CHECK(bench["layers"][0]["rows"] == 32);
}

TEST_CASE("what asks a model refuses expert choice and says what to do", "[cli]") {
  const World world;
  const auto quiz = world.dir / "quiz.jsonl";
  write_file(quiz, R"({"question": "a", "choices": ["a", "b"], "answer": 0})");
  World::check_refused({"eval", world.moe(), "--tasks", quiz.string()}, "(--router top2)");
  World::check_refused({"generate", world.moe(), "--prompt", "a"}, "(--router top2)");
  World::check_refused(world.train({"--eval-data", (world.dir / "rows.jsonl").string()}),
                       "leave --eval-data and --eval-tasks out");
}

TEST_CASE("the help of moe route lists every router with its options", "[cli]") {
  const std::string help = World::run({"route", "--help"});
  for (const char* line : {"top{K}[+ir][+fr][:cf=X|inf,...]", "topp:P", "relu:k=K",
                           "expert-choice[:cf=X]", "lambda0=", "a number from 0 (1e-08)"}) {
    INFO(line);
    CHECK(contains(help, line));
  }
}

}  // namespace moe::test
