#include "core/train/step/trainable.h"

#include "core/model/convert/upcycle.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe;
using moe::test::TempDir;
using moe::test::user_error_of;

namespace {

// A tiny model whose layers 0 and 2 are mixtures.
model::Llama tiny_mixture(const TempDir& dir, bool shared_expert = false) {
  test::write_tiny_checkpoint(dir / "dense");
  const io::Checkpoint parent(dir / "dense");
  model::UpcycleSettings settings;
  settings.out = dir / "moe";
  settings.experts = 4;
  settings.router = route::parse_router("top1");
  settings.shared_expert = shared_expert;
  model::upcycle(parent, model::plan_upcycle(parent, settings), settings);
  return model::Llama::load(io::Checkpoint(dir / "moe"));
}

std::vector<std::string> names_of(const model::Llama& model,
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
  CHECK(names_of(model, {}).size() == model.parameters().size());
  CHECK(names_of(model, {"router"}) ==
        Names{"model.layers.0.mlp.router", "model.layers.2.mlp.router"});
  CHECK(names_of(model, {"experts"}) ==
        Names{"model.layers.0.mlp.gate_up", "model.layers.0.mlp.down", "model.layers.2.mlp.gate_up",
              "model.layers.2.mlp.down"});
  CHECK(names_of(model, {"dense"})[0] == "model.layers.1.mlp.gate_up");
  CHECK(names_of(model, {"model.layers.1.self*"}) ==
        Names{"model.layers.1.self_attn.qkv", "model.layers.1.self_attn.o_proj"});
  CHECK(names_of(model, {"*.1.*norm"}) ==
        Names{"model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"});
  // Every parameter is in exactly one group.
  size_t sum = 0;
  for (const char* group : {"experts", "router", "attention", "dense", "norms", "embeddings"}) {
    sum += names_of(model, {group}).size();
  }
  CHECK(sum == model.parameters().size());
}

TEST_CASE("a shared expert is dense, and its gate keeps no copy in bf16", "[train]") {
  const TempDir dir;
  const auto model = tiny_mixture(dir, /*shared_expert=*/true);
  CHECK(names_of(model, {"experts"}).size() == 4);
  const Names dense = names_of(model, {"dense"});
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

TEST_CASE("a word that names nothing is refused with what is known", "[train]") {
  const TempDir dir;
  const auto model = tiny_mixture(dir);
  const auto error = [&](const std::string& word) {
    return user_error_of([&] { train::trainable(model, {word}); });
  };
  CHECK(error("expert") ==
        "--train 'expert' is unknown, did you mean 'experts'?; known: experts, router, attention, "
        "dense, norms, embeddings, or a pattern like model.layers.0.*");
  CHECK(error("model.layers.9.*").find("names nothing in this model") != std::string::npos);
  CHECK(error("*a*b*c*d*e").find("may have 4 stars") != std::string::npos);
}

TEST_CASE("a router trains where a word names one, and where none is said", "[train]") {
  const TempDir dir;
  const model::ModelConfig config = tiny_mixture(dir).config();  // layers 0 and 2
  CHECK(train::trains_router({}, config));
  CHECK(train::trains_router({"experts", "router"}, config));
  CHECK(train::trains_router({"model.layers.2.*"}, config));
  CHECK_FALSE(train::trains_router({"experts", "norms"}, config));
  CHECK_FALSE(train::trains_router({"model.layers.1.*"}, config));
  model::ModelConfig dense = config;
  dense.moe.reset();
  CHECK_FALSE(train::trains_router({}, dense));
}
