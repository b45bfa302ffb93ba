// Frequencies against transformers' own (tests/golden/rope.json, made by make_rope.py).

#include "core/model/llama/rope.h"

#include <ATen/core/grad_mode.h>

#include "core/base/json.h"
#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

using at::Tensor;

namespace {

moe::Json golden() { return moe::read_json(moe::test::source_folder() / "tests/golden/rope.json"); }

moe::model::ModelConfig with_rope(const moe::Json& config, const moe::Json& one) {
  moe::Json changed = config;
  changed.erase("rope_scaling");
  changed.erase("rope_theta");
  changed["rope_parameters"] = one.at("rope");
  changed["max_position_embeddings"] = one.at("max_position_embeddings");
  return moe::model::parse_config(changed, "test");
}

}  // namespace

TEST_CASE("rope frequencies equal transformers' for every scaling", "[model]") {
  const moe::Json base = {{"architectures", {"LlamaForCausalLM"}},
                          {"model_type", "llama"},
                          {"vocab_size", 32},
                          {"hidden_size", 128},
                          {"intermediate_size", 8},
                          {"num_hidden_layers", 1},
                          {"num_attention_heads", 2}};
  for (const auto& one : golden().at("cases")) {
    CAPTURE(one.at("name").get<std::string>());
    const auto config = with_rope(base, one);
    const Tensor actual =
        moe::model::rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings,
                                     one.at("sequence_length").get<int64_t>());
    const Tensor expected =
        at::tensor(one.at("frequencies").get<std::vector<double>>(), at::kDouble);
    // Same operations in f32; theta itself may be rounded one step apart: 4 roundings of 2^-24.
    CHECK(at::allclose(actual.to(at::kDouble), expected, 2.4e-7, 0));
  }
}

TEST_CASE("a real model's logits equal transformers' under every rope scaling", "[model]") {
  MOE_NEED_SHARED_DATA();
  const auto folder = moe::test::shared_data() / "stories260K-hf";
  const auto reference = golden();
  const auto ids = reference.at("ids").get<std::vector<int64_t>>();
  for (const auto& one : reference.at("cases")) {
    CAPTURE(one.at("name").get<std::string>());
    const moe::test::TempDir changed;
    auto config = moe::read_json(folder / "config.json");
    config.erase("rope_scaling");
    config.erase("rope_theta");
    config["rope_parameters"] = one.at("rope");
    config["max_position_embeddings"] = one.at("max_position_embeddings");
    moe::test::write_file(changed / "config.json", config.dump());
    std::filesystem::create_symlink(folder / "model.safetensors", changed / "model.safetensors");

    const at::NoGradGuard no_gradients;
    const auto model = moe::model::Llama::load(moe::io::Checkpoint(changed.path()));
    const auto count = static_cast<int64_t>(ids.size());
    const Tensor hidden =
        model.forward({at::tensor(ids, at::kLong), {count}}, model.default_routing()).hidden;
    const Tensor logits = model.head(hidden.narrow(0, count - 1, 1))[0].to(at::kDouble);
    const Tensor expected =
        at::tensor(one.at("last_logits").get<std::vector<double>>(), at::kDouble);
    CHECK((logits - expected).abs().max().item<double>() < 1e-4);
  }
}

TEST_CASE("rotation keeps lengths and turns by relative position only", "[model]") {
  at::manual_seed(1);
  const Tensor frequencies = moe::model::rope_frequencies({}, 8, 64, 64);
  const Tensor query = at::randn({1, 1, 1, 8}), key = at::randn({1, 1, 1, 8});
  const auto score = [&](int64_t at_query, int64_t at_key) {
    const Tensor q =
        moe::model::apply_rope(query, moe::model::rope_table(frequencies, at_query, 1));
    const Tensor k = moe::model::apply_rope(key, moe::model::rope_table(frequencies, at_key, 1));
    CHECK(q.norm().item<double>() == Approx(query.norm().item<double>()).epsilon(1e-6));
    return (q * k).sum().item<double>();
  };
  CHECK(score(9, 4) == Approx(score(25, 20)).margin(1e-5));
}
