#include "core/train/step/trainable.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::test;

namespace {

// A tiny model whose layers 0 and 2 are mixtures.
model::Llama tiny_mixture(const TempDir& dir, bool shared_expert = false) {
  test::write_tiny_checkpoint(dir / "dense");
  test::write_mixture(dir / "dense", dir / "moe",
                      {.router = "top1", .experts = 4, .shared_expert = shared_expert});
  return model::Llama::load(io::Checkpoint(dir / "moe"));
}

std::vector<std::string> trained_names(const model::Llama& model,
                                       const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const auto& parameter : train::trainable(model, words)) {
    names.push_back(parameter.name);
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("groups and patterns name the parameters that train", "[train]") {
  const TempDir dir;
  const auto model = tiny_mixture(dir);
  CHECK(trained_names(model, {}).size() == model.parameters().size());
  CHECK(trained_names(model, {"router"}) ==
        Names{"model.layers.0.mlp.router", "model.layers.2.mlp.router"});
  CHECK(trained_names(model, {"experts"}) ==
        Names{"model.layers.0.mlp.gate_up", "model.layers.0.mlp.down", "model.layers.2.mlp.gate_up",
              "model.layers.2.mlp.down"});
  CHECK(trained_names(model, {"dense"})[0] == "model.layers.1.mlp.gate_up");
  CHECK(trained_names(model, {"model.layers.1.self*"}) ==
        Names{"model.layers.1.self_attn.qkv", "model.layers.1.self_attn.o_proj"});
  CHECK(trained_names(model, {"*.1.*norm"}) ==
        Names{"model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"});
  // Every parameter is in exactly one group.
  size_t sum = 0;
  for (const char* group : {"experts", "router", "attention", "dense", "norms", "embeddings"}) {
    sum += trained_names(model, {group}).size();
  }
  CHECK(sum == model.parameters().size());
}

TEST_CASE("a shared expert is in the group dense, and its gate has no bf16 copy", "[train]") {
  const TempDir dir;
  const auto model = tiny_mixture(dir, /*shared_expert=*/true);
  CHECK(trained_names(model, {"experts"}).size() == 4);
  const Names dense = trained_names(model, {"dense"});
  CHECK(dense[0] == "model.layers.0.mlp.shared_expert.gate_up");
  CHECK(dense[1] == "model.layers.0.mlp.shared_expert.down");
  CHECK(dense[2] == "model.layers.0.mlp.shared_expert_gate");
  CHECK(dense[3] == "model.layers.1.mlp.gate_up");
  train::TrainSettings settings;
  settings.on_cuda = true;
  settings.compute.precision = model::Precision::kBf16;
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.find("shared_expert") != std::string::npos) {
      CHECK(train::has_bf16_copy(parameter, model.config(), settings) ==
            !parameter.name.ends_with("gate"));
    }
  }
}

TEST_CASE("--train with an unknown name is refused with the known ones", "[train]") {
  const TempDir dir;
  const auto model = tiny_mixture(dir);
  for (const auto& [word, fact] :
       {std::pair("expert", "did you mean 'experts'?"),
        std::pair("expert", "experts, router, attention"),
        std::pair("model.layers.9.*", "'model.layers.9.*'"), std::pair("*a*b*c*d*e", "4 stars")}) {
    CHECK_THAT(user_error_of([&] { train::trainable(model, {word}); }), test::contains_text(fact));
  }
}
