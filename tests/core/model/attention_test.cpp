// Attention: gradients with norms of query and key heads against finite differences, and rope
// against transformers (tests/golden/rope.json, made by make_rope.py). llama_test.cpp tests the
// whole model.

#include "core/model/llama/attention.h"

#include <ATen/core/grad_mode.h>

#include "core/base/json.h"
#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/gradcheck.h"

namespace moe::model {
namespace {

using namespace moe::test;
using at::Tensor;

// D 6, H 4, G 2, A 4: H A differs from D, as in Qwen3.
ModelConfig config_with_norms() {
  ModelConfig config;
  config.hidden_size = 6;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.rms_norm_eps = 1e-3;  // large enough to matter
  config.qk_norm = true;
  return config;
}

AttentionWeights weights_with_norms() {
  at::manual_seed(3);
  const at::TensorOptions options(at::kDouble);
  AttentionWeights weights;
  weights.qkv = at::randn({32, 6}, options);
  weights.bias = at::randn({32}, options);
  weights.output = at::randn({6, 16}, options);
  weights.query_norm = at::randn({4}, options);
  weights.key_norm = at::randn({4}, options);
  return weights;
}

TEST_CASE("attention with head norms has the gradients of finite differences", "[model]") {
  const ModelConfig config = config_with_norms();
  const AttentionWeights weights = weights_with_norms();
  const Tensor x = at::randn({5, 6}, at::kDouble), mix = at::randn({5, 6}, at::kDouble);
  const std::vector<int64_t> lengths{3, 2}, none;
  const auto loss = [&](const Tensor& input, const AttentionWeights& given) {
    const Tensor heads = self_attention(input, given, config, {lengths, none});
    return (adapted_linear(heads, given.output, {}, given.output_adapter) * mix).sum();
  };
  const auto check = [&](const char* name, const Tensor& at,
                         const std::function<Tensor(const Tensor&)>& f) {
    INFO(name);
    CHECK(distance(autograd(f, at), finite_difference(f, at)) < kGradTolerance);
  };
  check("x", x, [&](const Tensor& value) { return loss(value, weights); });
  const auto with = [&](auto AttentionWeights::*member) {
    return [&loss, &x, &weights, member](const Tensor& value) {
      AttentionWeights changed = weights;
      changed.*member = value;
      return loss(x, changed);
    };
  };
  check("q_norm", weights.query_norm, with(&AttentionWeights::query_norm));
  check("k_norm", weights.key_norm, with(&AttentionWeights::key_norm));
  check("qkv", weights.qkv.tensor, with(&AttentionWeights::qkv));
  check("bias", weights.bias, with(&AttentionWeights::bias));
}

Json golden() { return read_json(source_folder() / "tests/golden/rope.json"); }

// Returns `config` with the rope of a golden case.
Json with_rope(Json config, const Json& one) {
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = one.at("rope");
  config["max_position_embeddings"] = one.at("max_position_embeddings");
  return config;
}

TEST_CASE("rope frequencies equal transformers' for every scaling", "[model]") {
  const Json base = {{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"vocab_size", 32},
                     {"hidden_size", 128},
                     {"intermediate_size", 8},
                     {"num_hidden_layers", 1},
                     {"num_attention_heads", 2}};
  const Json cases = golden().at("cases");
  for (const auto& one : cases) {
    CAPTURE(one.at("name").get<std::string>());
    const auto config = parse_config(with_rope(base, one), "test");
    const Tensor actual =
        rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings,
                         one.at("sequence_length").get<int64_t>());
    const Tensor expected =
        at::tensor(one.at("frequencies").get<std::vector<double>>(), at::kDouble);
    // Same operations in f32; theta itself may be rounded one step apart: 4 roundings of 2^-24.
    CHECK(at::allclose(actual.to(at::kDouble), expected, 2.4e-7, 0));
  }
}

TEST_CASE("logits of a trained model equal transformers' for every rope scaling", "[model]") {
  const auto folder = tiny_model_folder();
  const auto reference = golden();
  const auto ids = reference.at("ids").get<std::vector<int64_t>>();
  for (const auto& one : reference.at("cases")) {
    CAPTURE(one.at("name").get<std::string>());
    const TempDir changed;
    write_file(changed / "config.json", with_rope(read_json(folder / "config.json"), one).dump());
    std::filesystem::create_symlink(folder / "model.safetensors", changed / "model.safetensors");

    const at::NoGradGuard no_gradients;
    const auto model = Llama::load(io::Checkpoint(changed.path()));
    const auto count = static_cast<int64_t>(ids.size());
    const Tensor hidden =
        model.forward({at::tensor(ids, at::kLong), {count}}, model.default_routing()).hidden;
    const Tensor logits = model.head(hidden.narrow(0, count - 1, 1))[0].to(at::kDouble);
    const Tensor expected =
        at::tensor(one.at("last_logits").get<std::vector<double>>(), at::kDouble);
    CHECK((logits - expected).abs().max().item<double>() < 1e-4);
  }
}

}  // namespace
}  // namespace moe::model
