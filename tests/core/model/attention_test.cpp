// Norms of queries and keys against loops over their heads, and all gradients of an attention that
// has them against finite differences. The whole model stands in llama_test.cpp.

#include "core/model/llama/attention.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace moe::model {
namespace {

using at::Tensor;

// D 6, H 4, G 2, A 4: heads * head_dim is not the width, as in Qwen3.
ModelConfig config_with_norms() {
  ModelConfig config;
  config.hidden_size = 6;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.rms_norm_eps = 1e-3;  // so large that it matters
  config.qk_norm = true;
  return config;
}

AttentionWeights weights_with_norms(at::ScalarType type) {
  at::manual_seed(3);
  const at::TensorOptions options(type);
  AttentionWeights weights;
  weights.qkv = at::randn({32, 6}, options);
  weights.bias = at::randn({32}, options);
  weights.output = at::randn({6, 16}, options);
  weights.query_norm = at::randn({4}, options);
  weights.key_norm = at::randn({4}, options);
  return weights;
}

TEST_CASE("queries and keys are normed head by head, values are not", "[model]") {
  const ModelConfig config = config_with_norms();
  const auto tokens = GENERATE(0, 1, 5);
  const AttentionWeights weights = weights_with_norms(at::kFloat);
  const Tensor x = at::randn({tokens, 6});
  AttentionWeights plain = weights;
  plain.query_norm = plain.key_norm = Tensor();
  const Tensor before = project_qkv(x, plain, config), after = project_qkv(x, weights, config);
  REQUIRE(after.sizes() == before.sizes());
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < 8; ++head) {
      const Tensor row = before[token].narrow(0, 4 * head, 4).to(at::kDouble);
      double squares = 0;
      for (int64_t i = 0; i < 4; ++i) {
        squares += std::pow(row[i].item<double>(), 2);
      }
      for (int64_t i = 0; i < 4; ++i) {
        const Tensor& weight = head < 4 ? weights.query_norm : weights.key_norm;
        const double normed =
            row[i].item<double>() / std::sqrt(squares / 4 + 1e-3) * weight[i].item<double>();
        const double expected = head < 6 ? normed : row[i].item<double>();
        // A few roundings of numbers of order 1.
        CHECK(std::abs(after[token][4 * head + i].item<double>() - expected) <
              1e-6 * (1 + std::abs(expected)));
      }
    }
  }
}

TEST_CASE("activations in bf16 are normed in f32 and rounded once", "[model]") {
  const ModelConfig config = config_with_norms();
  AttentionWeights weights = weights_with_norms(at::kFloat);
  const Tensor x = at::randn({5, 6}).to(at::kBFloat16);
  AttentionWeights plain = weights;
  plain.query_norm = plain.key_norm = Tensor();
  const Tensor rows = project_qkv(x, plain, config).narrow(1, 0, 16).reshape({20, 4});
  const Tensor wide = rows.to(at::kFloat);
  const Tensor expected =
      wide * at::rsqrt(wide.square().mean(-1, true) + 1e-3) * weights.query_norm;
  const Tensor after = project_qkv(x, weights, config).narrow(1, 0, 16).reshape({20, 4});
  REQUIRE(after.scalar_type() == at::kBFloat16);
  // Half a unit of 8 bits, and f32 roundings that may move a tie.
  CHECK(((after.to(at::kFloat) - expected).abs() / (expected.abs() + 1e-6)).max().item<double>() <
        std::ldexp(1.0, -8));
}

TEST_CASE("an attention with normed heads has the gradients of finite differences", "[model]") {
  const ModelConfig config = config_with_norms();
  const AttentionWeights weights = weights_with_norms(at::kDouble);
  const Tensor x = at::randn({5, 6}, at::kDouble), mix = at::randn({5, 6}, at::kDouble);
  const std::vector<int64_t> lengths{3, 2}, none;
  const auto loss = [&](const Tensor& input, const AttentionWeights& its_weights) {
    const Tensor heads = attended_tokens(input, its_weights, config, {lengths, none});
    return (adapted_linear(heads, its_weights.output, {}, its_weights.output_adapter) * mix).sum();
  };
  const auto check = [&](const char* name, const Tensor& at,
                         const std::function<Tensor(const Tensor&)>& f) {
    INFO(name);
    CHECK(test::distance(test::autograd(f, at), test::finite_difference(f, at)) <
          test::kGradTolerance);
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

}  // namespace
}  // namespace moe::model
