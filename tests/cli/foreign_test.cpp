// Models of other architectures (Mixtral, Mistral, Qwen): they are inspected, trained and
// evaluated, and saved with their own model_type.

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/foreign_checkpoint.h"

namespace moe {
namespace {

using namespace moe::test;

struct Fixture {
  TempDir dir;

  explicit Fixture(Foreign kind, int64_t shared_width = 0) {
    // 1024 tokens, for the tokenizer of the tiny model.
    write_foreign_checkpoint(
        dir / "stock",
        {.kind = kind, .dense_layers = {}, .shared_width = shared_width, .tiny = {.vocab = 1024}});
    fs::copy(tiny("model/tokenizer.model"), dir / "stock/tokenizer.model");
    write_training_rows(dir / "rows.jsonl", 8);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  Args training(const Args& flags = {}) const {
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

  // Checks that moe eval and moe generate run a model.
  void check_runs(const std::string& name) const {
    write_file(dir / "requests.jsonl",
               "{\"context\": \"Once upon\", \"continuation\": \" a time\"}\n");
    const auto scored = succeed({"eval", path(name), "--requests", path("requests.jsonl"), "-q"});
    CHECK(parse_json(scored.out, "stdout").at("logprob").get<double>() < 0);
    succeed({"generate", path(name), "--prompt", "Once", "--max-tokens", "3"});
  }
};

TEST_CASE("a Mixtral model is inspected, trained and saved as Mixtral") {
  const Fixture fixture(Foreign::kMixtral);
  const std::string stock = fixture.inspect("stock");
  check_contains(stock,
                 {"model type    mixtral\n", "router        top2:cf=inf,st=off,lb=selected\n"});
  CHECK_THAT(stock, !contains_text("needs moe"));

  fixture.set_config("router_jitter_noise", 0.1);
  const auto trained = succeed(fixture.training());
  check_contains(
      trained.err,
      {"router top2:cf=inf,st=off,lb=selected on 4 logical ranks, no capacity, routing does "
       "not depend on the batch; loss = language model + 0.02 x load balance",
       "router_jitter_noise 0.1 of " + fixture.path("stock") + " is not applied"});
  CHECK(fixture.final_config().at("model_type") == "mixtral");
  CHECK(fixture.final_config().at("router_jitter_noise") == 0.1);

  // Mixtral has no capacity, so the saved model has an additional "moe" section for the router.
  succeed(fixture.training({"--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}));
  check_contains(fixture.inspect("run/final"),
                 {"model type    mixtral\n", "router        top2+ir+fr:cf=1,st=off,lb=selected\n",
                  "needs moe     expert capacity (cf=1)"});
  CHECK_THAT(run_moe(fixture.training({"--router", "relu:k=1"})).err,
             contains_text("ReLU and softmax logits mean different things"));
}

TEST_CASE("Mistral, Qwen2, Qwen3 are upcycled, trained, evaluated; they keep model_type") {
  const auto [kind, type, mixture] = GENERATE(
      table<Foreign, std::string, std::string>({{Foreign::kMistral, "mistral", "qwen2_moe"},
                                                {Foreign::kQwen2, "qwen2", "qwen2_moe"},
                                                {Foreign::kQwen3, "qwen3", "qwen3_moe"}}));
  INFO(type);
  const Fixture fixture(kind);
  CHECK_THAT(fixture.inspect("stock"), contains_text("model type    " + type + "\n"));
  succeed({"upcycle", fixture.path("stock"), "-o", fixture.path("moe"), "--experts", "4",
           "--router", "top2:cf=inf", "--verify"});
  CHECK(read_json(fixture.dir / "moe/config.json").at("model_type") == mixture);
  const Json report = read_json(fixture.dir / "moe/upcycle.json");
  CHECK(report.at("certificate").at("max_abs_logit_difference").get<double>() < 1e-4);
  succeed(fixture.training());
  CHECK(fixture.final_config().at("model_type") == type);
  CHECK_FALSE(fixture.final_config().contains("moe"));
  fixture.check_runs("run/final");
}

TEST_CASE("a Qwen2-MoE model trains, evaluates and generates, with and without a shared expert") {
  const Fixture plain(Foreign::kQwen2Moe);
  succeed(plain.training());
  CHECK(plain.final_config().at("model_type") == "qwen2_moe");
  CHECK(plain.final_config().at("moe").at("form") == "qwen2_moe");
  plain.check_runs("run/final");

  const Fixture fixture(Foreign::kQwen2Moe, /*shared_width=*/20);
  CHECK_THAT(fixture.inspect("stock"),
             contains_text("4 experts of width 12, plus a shared expert of width 20"));
  fixture.check_runs("stock");
  succeed(fixture.training());
  const std::string alone = read_file(fixture.dir / "run/final/model.safetensors");
  for (const Args& flags :
       {Args{"--lora", "2", "--precision", "bf16", "--recompute", "layer"},
        Args{"--ranks", "2", "--router", "top2+ir+fr:cf=1", "--ep-ranks", "2"}}) {
    succeed(fixture.training(flags));
    CHECK(read_file(fixture.dir / "run/final/model.safetensors") != alone);
    CHECK(fixture.final_config().at("model_type") == "qwen2_moe");
    CHECK(fixture.final_config().at("shared_expert_intermediate_size") == 20);
  }
}

}  // namespace
}  // namespace moe
