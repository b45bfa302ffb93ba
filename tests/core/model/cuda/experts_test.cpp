// The experts of a routed layer on a GPU against the CPU: with counts that stay on the device,
// where the router has a capacity, and with counts that are read back, where it has none.

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/layer.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::model;

namespace {

struct Case {
  Tensor x, logits, gate_up, down, upstream;
  moe::route::RouterSettings router;

  // y, and the gradients of x, logits and both weights.
  std::vector<Tensor> results() const {
    const auto leaf = [](const Tensor& tensor) {
      return tensor.detach().clone().requires_grad_(true);
    };
    const std::vector<Tensor> in{leaf(x), leaf(logits), leaf(gate_up), leaf(down)};
    const auto routing =
        moe::route::route(in[1], router, moe::route::spread_over_ranks(x.size(0), 2));
    const Tensor y = run_experts(in[0], {{}, in[2], in[3]}, routing, 0.5);
    auto all = torch::autograd::grad({y}, in, {upstream}, {}, false, /*allow_unused=*/true);
    all.push_back(y.detach());
    return all;
  }
};

Case random_case(const std::string& router, int64_t tokens) {
  const auto make = [](at::IntArrayRef shape) { return at::randn(shape) / 2; };
  return {make({tokens, 16}), make({tokens, 4}) * 4, make({4, 16, 16}),
          make({4, 16, 8}),   make({tokens, 16}),    moe::route::parse_router(router)};
}

Tensor or_zero(const Tensor& gradient) {
  return gradient.defined() ? gradient.cpu() : at::zeros({1});
}

}  // namespace

TEST_CASE("a layer's experts on a GPU equal the CPU's", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  for (const auto* router :
       {"top1", "top2", "top1+ir+fr", "top2+ir+fr:cf=0.6", "top2:cf=inf", "topp:0.6", "relu:k=1"}) {
    for (const int64_t tokens : {1, 31, 33}) {
      CAPTURE(router, tokens);
      Case each = random_case(router, tokens);
      const auto expected = each.results();
      for (Tensor* tensor : {&each.x, &each.logits, &each.gate_up, &each.down, &each.upstream}) {
        *tensor = tensor->to(moe::test::kGpu);
      }
      const auto actual = each.results();
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(or_zero(actual[i]), or_zero(expected[i]), 1e-4, 1e-4));
      }
    }
  }
}
