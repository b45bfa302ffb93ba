// The shared expert against plain loops and finite differences, in f64, f32 and bf16. lora_test.cpp
// tests its adapters, tests/core/upcycle/verify_test.cpp its sum with routed experts.

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

// Computes the formula of transformers' Qwen2-MoE with scalar loops.
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

TEST_CASE("a shared expert equals plain loops", "[model]") {
  at::manual_seed(61);
  const SharedExpert shared = random_shared();
  const Tensor x = at::randn({kTokens, kWidth}, at::kDouble);
  CHECK(distance(shared.run(x), plain(x, shared)) < 1e-13);
  const SharedExpert narrow = random_shared(at::kFloat);
  CHECK(distance(narrow.run(x.to(at::kFloat)), plain(x, narrow)) < 1e-5);
  CHECK(narrow.run(at::zeros({0, kWidth})).sizes() == at::IntArrayRef({0, kWidth}));
}

TEST_CASE("a shared expert of bf16 rows adds in f32 and does not round its gate", "[model]") {
  at::manual_seed(62);
  SharedExpert shared = random_shared(at::kFloat);
  const Tensor x = at::randn({kTokens, kWidth}).to(at::kBFloat16);
  const Tensor y = shared.run(x);
  CHECK(y.scalar_type() == at::kFloat);
  // Operands and products are rounded to 8 bits: a few times 2^-8 of the terms of the sum.
  const Tensor exact = plain(x.to(at::kFloat), shared);
  CHECK((y - exact).abs().max().item<double>() < 0.04 * exact.abs().max().item<double>());
  // A gate that bf16 cannot represent changes only the share.
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
  const auto check = [&](const std::function<Tensor(const Tensor&)>& output, const Tensor& at) {
    const auto loss = [&](const Tensor& value) { return (output(value) * dy).sum(); };
    // Outputs and curvature are up to 100 times those that kGradTolerance was made for.
    CHECK(distance(autograd(loss, at), finite_difference(loss, at)) < 100 * kGradTolerance);
  };
  const Tensor& gate = shared.gate;
  const kernels::Weight &gate_up = shared.gate_up, &down = shared.down;
  check([&](const Tensor& at) { return shared.run(at); }, x);
  check([&](const Tensor& at) { return SharedExpert{at, gate_up, down}.run(x); }, gate);
  check([&](const Tensor& at) { return SharedExpert{gate, at, down}.run(x); }, gate_up.tensor);
  check([&](const Tensor& at) { return SharedExpert{gate, gate_up, at}.run(x); }, down.tensor);
}

}  // namespace moe::test
