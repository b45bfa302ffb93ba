// The shared expert against plain loops and finite differences, in every type, and beside routed
// experts.

#include "core/model/moe/shared_expert.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/model/moe/layer.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

using at::Tensor;
using model::SharedExpert;

constexpr int64_t kTokens = 7, kWidth = 5, kInner = 3;

SharedExpert random_shared(at::ScalarType type = at::kDouble) {
  return {at::randn({1, kWidth}, type), at::randn({1, 2 * kInner, kWidth}, type),
          at::randn({1, kWidth, kInner}, type)};
}

// The formula of transformers' Qwen2-MoE, a number at a time.
Tensor plain(const Tensor& x, const SharedExpert& shared) {
  const Tensor gate_up = shared.gate_up.tensor[0], down = shared.down.tensor[0];
  const auto dot = [](const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (int64_t i = 0; i < a.size(0); ++i) {
      sum += a[i].item<double>() * b[i].item<double>();
    }
    return sum;
  };
  const int64_t inner = down.size(1);
  Tensor y = at::zeros(x.sizes(), at::kDouble);
  for (int64_t token = 0; token < x.size(0); ++token) {
    const double share = 1 / (1 + std::exp(-dot(x[token], shared.gate[0])));
    Tensor hidden = at::zeros({inner}, at::kDouble);
    for (int64_t i = 0; i < inner; ++i) {
      const double gate = dot(x[token], gate_up[i]), up = dot(x[token], gate_up[inner + i]);
      hidden[i] = gate / (1 + std::exp(-gate)) * up;
    }
    for (int64_t i = 0; i < x.size(1); ++i) {
      y[token][i] = share * dot(hidden, down[i]);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("a shared expert is the plain loops", "[model]") {
  at::manual_seed(61);
  const SharedExpert shared = random_shared();
  const Tensor x = at::randn({kTokens, kWidth}, at::kDouble);
  CHECK(distance(shared.run(x), plain(x, shared)) < 1e-13);
  const SharedExpert narrow = random_shared(at::kFloat);
  CHECK(distance(narrow.run(x.to(at::kFloat)), plain(x, narrow)) < 1e-5);
  CHECK(narrow.run(at::zeros({0, kWidth})).sizes() == at::IntArrayRef({0, kWidth}));
}

TEST_CASE("a shared expert of rows in bf16 adds in f32, its gate unrounded", "[model]") {
  at::manual_seed(62);
  SharedExpert shared = random_shared(at::kFloat);
  const Tensor x = at::randn({kTokens, kWidth}).to(at::kBFloat16);
  const Tensor y = shared.run(x);
  CHECK(y.scalar_type() == at::kFloat);
  // Operands and products are rounded to 8 bits, a few times 2^-8 of what is summed up.
  const Tensor exact = plain(x.to(at::kFloat), shared);
  CHECK((y - exact).abs().max().item<double>() < 0.04 * exact.abs().max().item<double>());
  // With a gate that bf16 cannot hold the share alone moves.
  const Tensor once = shared.run(x);
  shared.gate = shared.gate * (1 + 0x1p-12);
  const Tensor moved = shared.run(x) / once;
  CHECK((moved - 1).abs().max().item<double>() > 0);
  CHECK((moved - 1).abs().max().item<double>() < 0x1p-9);
}

TEST_CASE("a shared expert has the gradients of finite differences", "[model]") {
  at::manual_seed(63);
  const SharedExpert shared = random_shared();
  const Tensor x = at::randn({kTokens, kWidth}, at::kDouble),
               dy = at::randn({kTokens, kWidth}, at::kDouble);
  const auto check = [](const std::function<Tensor(const Tensor&)>& loss, const Tensor& at) {
    // Outputs and curvature are up to 100 times those that kGradTolerance was made for.
    CHECK(distance(autograd(loss, at), finite_difference(loss, at)) < 100 * kGradTolerance);
  };
  check([&](const Tensor& at) { return (shared.run(at) * dy).sum(); }, x);
  check(
      [&](const Tensor& at) {
        return (SharedExpert{at, shared.gate_up, shared.down}.run(x) * dy).sum();
      },
      shared.gate);
  check(
      [&](const Tensor& at) {
        return (SharedExpert{shared.gate, at, shared.down}.run(x) * dy).sum();
      },
      shared.gate_up.tensor);
  check(
      [&](const Tensor& at) {
        return (SharedExpert{shared.gate, shared.gate_up, at}.run(x) * dy).sum();
      },
      shared.down.tensor);
}

TEST_CASE("adapters of a shared expert are added to its matrices", "[model]") {
  at::manual_seed(64);
  SharedExpert shared = random_shared(at::kFloat);
  const Tensor x = at::randn({kTokens, kWidth});
  for (auto [weight, adapter] : {std::pair{&shared.gate_up.tensor, &shared.gate_up_adapter},
                                 {&shared.down.tensor, &shared.down_adapter}}) {
    *adapter = model::make_adapter(*weight, 2, 0.5, 9);
    adapter->b = at::randn_like(adapter->b);
  }
  const SharedExpert merged{shared.gate,
                            model::merged_weight(shared.gate_up.tensor, shared.gate_up_adapter),
                            model::merged_weight(shared.down.tensor, shared.down_adapter)};
  CHECK(distance(shared.run(x), merged.run(x)) < 1e-5);
}

TEST_CASE("beside experts that add zeros a gate of zeros keeps half of the shared one", "[model]") {
  at::manual_seed(65);
  SharedExpert shared = random_shared(at::kFloat);
  shared.gate.zero_();
  const SharedExpert twice{shared.gate, shared.gate_up, shared.down.tensor * 2};
  const model::MoeWeights routed{at::randn({4, kWidth}), at::randn({4, 2 * kInner, kWidth}),
                                 at::zeros({4, kWidth, kInner})};
  const Tensor x = at::randn({kTokens, kWidth});
  const Tensor dense = plain(x, shared) * 2;
  for (const char* router : {"top1", "top2+ir+fr:cf=0.5", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    const auto out = model::moe_forward(x, routed, route::parse_router(router),
                                        route::spread_over_ranks(kTokens, 1));
    CHECK(distance(out.y + twice.run(x), dense) < 1e-5);
    CHECK(at::equal(out.y + twice.run(x), twice.run(x)));
  }
}

}  // namespace moe::test
