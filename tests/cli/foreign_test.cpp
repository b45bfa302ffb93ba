// Folders of other tools are inspected, trained, evaluated and written with their own names.

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/foreign_checkpoint.h"

namespace moe {
namespace {

using namespace moe::test;

struct World {
  TempDir dir;

  explicit World(Foreign kind, int64_t shared_width = 0) {
    // 1024 tokens, for the tokenizer of the tiny model.
    write_foreign_checkpoint(
        dir / "stock",
        {.kind = kind, .dense_layers = {}, .shared_width = shared_width, .tiny = {.vocab = 1024}});
    fs::copy(tiny("model/tokenizer.model"), dir / "stock/tokenizer.model");
    write_training_rows(dir / "rows.jsonl", 8);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  Words training(const Words& flags = {}) const {
    return joined({"train", path("stock"), "-o", path("run"), "--data", path("rows.jsonl"),
                   "--steps", "2", "--lr", "1e-2", "--threads", "1", "--force"},
                  flags);
  }
  std::string inspect(const std::string& name) const {
    return succeed({"inspect", path(name)}).out;
  }
  Json final_config() const { return read_json(dir / "run/final/config.json"); }

  void set_config(const char* key, const Json& value) const {
    Json config = read_json(dir / "stock/config.json");
    config[key] = value;
    write_file(dir / "stock/config.json", config.dump());
  }

  // Checks that a folder scores a continuation and generates.
  void check_runs(const std::string& name) const {
    write_file(dir / "requests.jsonl",
               "{\"context\": \"Once upon\", \"continuation\": \" a time\"}\n");
    const auto scored = succeed({"eval", path(name), "--requests", path("requests.jsonl"), "-q"});
    CHECK(parse_json(scored.out, "stdout").at("logprob").get<double>() < 0);
    succeed({"generate", path(name), "--prompt", "Once", "--max-tokens", "3"});
  }
};

TEST_CASE("a Mixtral folder is inspected and trained, and written as Mixtral", "[cli]") {
  const World world(Foreign::kMixtral);
  const std::string stock = world.inspect("stock");
  check_has(stock, {"model type    mixtral\n", "router        top2:cf=inf,st=off,lb=selected\n"});
  CHECK_THAT(stock, !contains_text("needs moe"));

  world.set_config("router_jitter_noise", 0.1);
  const auto trained = succeed(world.training());
  check_has(trained.err,
            {"router top2:cf=inf,st=off,lb=selected on 4 logical ranks, no capacity, routing does "
             "not depend on the batch; loss = language model + 0.02 x load balance",
             "router_jitter_noise 0.1 of " + world.path("stock") + " is not applied"});
  CHECK(world.final_config().at("model_type") == "mixtral");
  CHECK(world.final_config().at("router_jitter_noise") == 0.1);

  // Mixtral has no capacity: the folder keeps its model_type and stores the router in addition.
  succeed(world.training({"--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}));
  check_has(world.inspect("run/final"),
            {"model type    mixtral\n", "router        top2+ir+fr:cf=1,st=off,lb=selected\n",
             "needs moe     expert capacity (cf=1)"});
  CHECK_THAT(run_moe(world.training({"--router", "relu:k=1"})).err,
             contains_text("ReLU and softmax logits mean different things"));
}

TEST_CASE("a dense relative of LLaMA is upcycled, trained, evaluated and keeps its model_type",
          "[cli]") {
  const auto [kind, type, mixture] = GENERATE(
      table<Foreign, std::string, std::string>({{Foreign::kMistral, "mistral", "qwen2_moe"},
                                                {Foreign::kQwen2, "qwen2", "qwen2_moe"},
                                                {Foreign::kQwen3, "qwen3", "qwen3_moe"}}));
  INFO(type);
  const World world(kind);
  CHECK_THAT(world.inspect("stock"), contains_text("model type    " + type + "\n"));
  succeed({"upcycle", world.path("stock"), "-o", world.path("moe"), "--experts", "4", "--router",
           "top2:cf=inf", "--verify"});
  CHECK(read_json(world.dir / "moe/config.json").at("model_type") == mixture);
  const Json report = read_json(world.dir / "moe/upcycle.json");
  CHECK(report.at("certificate").at("max_abs_logit_difference").get<double>() < 1e-4);
  succeed(world.training());
  CHECK(world.final_config().at("model_type") == type);
  CHECK_FALSE(world.final_config().contains("moe"));
  world.check_runs("run/final");
}

TEST_CASE("a Qwen2-MoE folder trains, evaluates and generates, with a shared expert and without",
          "[cli]") {
  const World plain(Foreign::kQwen2Moe);
  succeed(plain.training());
  CHECK(plain.final_config().at("model_type") == "qwen2_moe");
  CHECK(plain.final_config().at("moe").at("form") == "qwen2_moe");
  plain.check_runs("run/final");

  const World world(Foreign::kQwen2Moe, /*shared_width=*/20);
  CHECK_THAT(world.inspect("stock"),
             contains_text("4 experts of width 12, plus a shared expert of width 20"));
  world.check_runs("stock");
  succeed(world.training());
  const std::string alone = read_file(world.dir / "run/final/model.safetensors");
  for (const Words& flags :
       {Words{"--lora", "2", "--precision", "bf16", "--recompute", "layer"},
        Words{"--ranks", "2", "--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}}) {
    succeed(world.training(flags));
    CHECK(read_file(world.dir / "run/final/model.safetensors") != alone);
    CHECK(world.final_config().at("model_type") == "qwen2_moe");
    CHECK(world.final_config().at("shared_expert_intermediate_size") == 20);
  }
}

TEST_CASE("a missing tensor of a shared expert is named with exit code 2", "[cli]") {
  const World world(Foreign::kQwen2Moe);
  world.set_config("shared_expert_intermediate_size", 20);
  check_refused({"inspect", world.path("stock")},
                "'model.layers.0.mlp.shared_expert.down_proj.weight' is [16, 0], config.json says "
                "[16, 20]");
}

}  // namespace
}  // namespace moe
