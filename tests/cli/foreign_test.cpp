// Folders made by other tools, as a user meets them: inspected, trained, evaluated and written back
// in their own names.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::Foreign;
using test::run_moe;
using test::RunResult;
using test::TempDir;

struct World {
  TempDir dir;

  explicit World(Foreign kind, int64_t shared_width = 0) {
    // 512 tokens, so that the real tokenizer fits.
    test::write_foreign_checkpoint(
        dir / "stock",
        {.kind = kind, .dense_layers = {}, .shared_width = shared_width, .tiny = {.vocab = 512}});
    test::write_training_rows(dir / "rows.jsonl", 8);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult train(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {
        "train", path("stock"), "-o",   path("run"), "--data", path("rows.jsonl"), "--steps",
        "2",     "--lr",        "1e-2", "--threads", "1",      "--force"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  }
  Json final_config() const { return read_json(dir / "run/final/config.json"); }
};

std::string first_line_with(const std::string& text, const std::string& part) {
  const size_t at = text.find(part);
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

// Folders of `world` score a continuation and generate.
void check_scores_and_generates(const World& world, const std::vector<const char*>& models) {
  test::write_file(world.dir / "requests.jsonl",
                   "{\"context\": \"Once upon\", \"continuation\": \" a time\"}\n");
  for (const char* model : models) {
    const auto scored =
        run_moe({"eval", world.path(model), "--requests", world.path("requests.jsonl")});
    INFO(scored.err);
    REQUIRE(scored.exit_code == 0);
    CHECK(parse_json(scored.out, "stdout").at("logprob").get<double>() < 0);
    CHECK(run_moe({"generate", world.path(model), "--prompt", "Once", "--max-tokens", "3"})
              .exit_code == 0);
  }
}

TEST_CASE("a Mixtral folder is inspected and trained, and stays one", "[cli]") {
  const World world(Foreign::kMixtral);
  const auto inspected = run_moe({"inspect", world.path("stock")});
  INFO(inspected.err);
  REQUIRE(inspected.exit_code == 0);
  CHECK(first_line_with(inspected.out, "model type") == "model type    mixtral");
  CHECK(first_line_with(inspected.out, "router") == "router        top2:cf=inf,st=off,lb=selected");
  CHECK(inspected.out.find("needs moe") == std::string::npos);

  const auto trained = world.train({});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK(trained.err.find(
            "router top2:cf=inf,st=off,lb=selected on 4 logical ranks, no "
            "capacity, so the routing does not depend on the batch; loss = language model + "
            "0.02 x load balance") != std::string::npos);
  CHECK(world.final_config().at("model_type") == "mixtral");
  CHECK(run_moe({"inspect", world.path("run/final")}).exit_code == 0);

  // A capacity is ours: the folder stays a Mixtral and says what it was trained with.
  REQUIRE(world.train({"--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}).exit_code == 0);
  const auto own = run_moe({"inspect", world.path("run/final")});
  CHECK(first_line_with(own.out, "model type") == "model type    mixtral");
  CHECK(first_line_with(own.out, "router") == "router        top2+ir+fr:cf=1,st=off,lb=selected");
  CHECK(own.out.find("needs moe     expert capacity (cf=1)") != std::string::npos);

  const auto relu = world.train({"--router", "relu:k=1"});
  CHECK(relu.exit_code == 2);
  CHECK(relu.err.find("ReLU and softmax logits mean different things") != std::string::npos);
}

TEST_CASE("noise that a Mixtral was trained with is named once", "[cli]") {
  const World world(Foreign::kMixtral);
  Json config = read_json(world.dir / "stock/config.json");
  config["router_jitter_noise"] = 0.1;
  test::write_file(world.dir / "stock/config.json", config.dump());
  const auto trained = world.train({});
  REQUIRE(trained.exit_code == 0);
  CHECK(trained.err.find("router_jitter_noise 0.1 of " + world.path("stock") +
                         " is not applied: moe trains routers without noise\n") !=
        std::string::npos);
  CHECK(world.final_config().at("router_jitter_noise") == 0.1);
}

TEST_CASE("a Qwen2-MoE folder trains, evaluates and generates", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const World world(Foreign::kQwen2Moe);
  std::filesystem::copy(test::shared_data() / "stories260K-hf" / "tokenizer.model",
                        world.dir / "stock/tokenizer.model");
  const auto trained = world.train({});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK(world.final_config().at("model_type") == "qwen2_moe");
  CHECK(world.final_config().at("moe").at("form") == "qwen2_moe");
  check_scores_and_generates(world, {"stock", "run/final"});
}

TEST_CASE("kin of LLaMA are upcycled, trained and evaluated, and dense ones stay what they are",
          "[cli]") {
  MOE_NEED_SHARED_DATA();
  for (const auto& [kind, type, mixture] : {std::tuple{Foreign::kMistral, "mistral", "qwen2_moe"},
                                            std::tuple{Foreign::kQwen2, "qwen2", "qwen2_moe"},
                                            std::tuple{Foreign::kQwen3, "qwen3", "qwen3_moe"}}) {
    INFO(type);
    const World world(kind);
    std::filesystem::copy(test::shared_data() / "stories260K-hf" / "tokenizer.model",
                          world.dir / "stock/tokenizer.model");
    const auto inspected = run_moe({"inspect", world.path("stock")});
    REQUIRE(inspected.exit_code == 0);
    CHECK(first_line_with(inspected.out, "model type") == fmt::format("model type    {}", type));
    const auto upcycled = run_moe({"upcycle", world.path("stock"), "-o", world.path("moe"),
                                   "--experts", "4", "--router", "top2:cf=inf", "--verify"});
    INFO(upcycled.err);
    REQUIRE(upcycled.exit_code == 0);
    const Json config = read_json(world.dir / "moe/config.json");
    CHECK(config.at("model_type") == mixture);
    CHECK(read_json(world.dir / "moe/upcycle.json")
              .at("certificate")
              .at("max_abs_logit_difference")
              .get<double>() < 1e-4);
    REQUIRE(world.train({"--lora", "2"}).exit_code == 0);
    REQUIRE(world.train({}).exit_code == 0);
    CHECK(world.final_config().at("model_type") == type);
    CHECK_FALSE(world.final_config().contains("moe"));
    check_scores_and_generates(world, {"moe", "run/final"});
  }
}

TEST_CASE("a Qwen2-MoE folder with a shared expert trains, evaluates and generates, and keeps it",
          "[cli]") {
  MOE_NEED_SHARED_DATA();
  const World world(Foreign::kQwen2Moe, /*shared_width=*/20);
  std::filesystem::copy(test::shared_data() / "stories260K-hf" / "tokenizer.model",
                        world.dir / "stock/tokenizer.model");
  const auto inspected = run_moe({"inspect", world.path("stock")});
  CHECK(inspected.out.find("4 experts of width 12, plus a shared expert of width 20") !=
        std::string::npos);
  const auto trained = world.train({});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  CHECK(world.final_config().at("model_type") == "qwen2_moe");
  CHECK(world.final_config().at("shared_expert_intermediate_size") == 20);
  const std::string alone = test::read_file(world.dir / "run/final/model.safetensors");
  for (const auto& flags : {std::vector<std::string>{"--lora", "2"},
                            {"--precision", "bf16", "--recompute", "layer"},
                            {"--ranks", "2"},
                            {"--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}}) {
    const auto more = world.train(flags);
    INFO(flags[0] << more.err);
    REQUIRE(more.exit_code == 0);
    CHECK(test::read_file(world.dir / "run/final/model.safetensors") != alone);
    CHECK(world.final_config().at("shared_expert_intermediate_size") == 20);
  }
  check_scores_and_generates(world, {"stock", "run/final"});
}

TEST_CASE("a shared expert that is not there ends with code 2 and its tensor", "[cli]") {
  const World world(Foreign::kQwen2Moe);
  Json config = read_json(world.dir / "stock/config.json");
  config["shared_expert_intermediate_size"] = 20;
  test::write_file(world.dir / "stock/config.json", config.dump());
  const auto result = run_moe({"inspect", world.path("stock")});
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(result.err.find("'model.layers.0.mlp.shared_expert.down_proj.weight' is [16, 0], "
                        "config.json says [16, 20]") != std::string::npos);
}

}  // namespace
}  // namespace moe
