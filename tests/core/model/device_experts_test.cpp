#include "core/model/moe/device_experts.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/support/catch.h"

using at::Tensor;
using namespace moe::model;

namespace {

using Run = Tensor (*)(const Tensor&, const MoeWeights&, const moe::route::Routing&, double);

struct Case {
  Tensor x, logits, gate_up, down, upstream;
  moe::route::RouterSettings router;

  // y, and the gradients of x, logits and both weights.
  std::vector<Tensor> results(Run run) const {
    const auto leaf = [](const Tensor& tensor) {
      return tensor.detach().clone().requires_grad_(true);
    };
    const std::vector<Tensor> in{leaf(x), leaf(logits), leaf(gate_up), leaf(down)};
    const auto routing =
        moe::route::route(in[1], router, moe::route::spread_over_ranks(x.size(0), 2));
    const Tensor y = run(in[0], {{}, in[2], in[3]}, routing, 0.5);
    auto all = torch::autograd::grad({y}, in, {upstream}, {}, false, /*allow_unused=*/true);
    all.push_back(y.detach());
    return all;
  }
};

Tensor run_experts_here(const Tensor& x, const MoeWeights& weights,
                        const moe::route::Routing& routing, double gate_scale) {
  return run_experts(x, weights, routing, gate_scale);
}

Case random_case(const std::string& router, int64_t tokens, at::Device device) {
  const auto make = [&](at::IntArrayRef shape) { return (at::randn(shape) / 2).to(device); };
  return {make({tokens, 16}), make({tokens, 4}) * 4, make({4, 16, 16}),
          make({4, 16, 8}),   make({tokens, 16}),    moe::route::parse_router(router)};
}

Tensor or_zero(const Tensor& gradient) {
  return gradient.defined() ? gradient.cpu() : at::zeros({1});
}

}  // namespace

TEST_CASE("experts whose loads stay on the device equal those with loads on the host", "[model]") {
  at::manual_seed(3);
  for (const auto* router :
       {"top1", "top2", "top1+ir+fr", "top2+ir+fr:cf=0.6", "top2:cf=inf", "topp:0.6", "relu:k=1"}) {
    for (const int64_t tokens : {1, 31, 33}) {
      CAPTURE(router, tokens);
      const Case each = random_case(router, tokens, at::kCPU);
      const auto expected = each.results(run_experts_here);
      const auto actual = each.results(run_experts_on_device);
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(or_zero(actual[i]), or_zero(expected[i]), 1e-4, 1e-5));
      }
    }
  }
}

TEST_CASE("a layer's experts on a GPU equal the CPU's", "[model][gpu]") {
  if (!at::hasCUDA()) {
    MOE_SKIP("no GPU");
  }
  at::manual_seed(4);
  for (const auto* router : {"top1", "top2+ir+fr:cf=0.6", "topp:0.6", "relu:k=1"}) {
    Case each = random_case(router, 33, at::kCPU);
    const auto expected = each.results(run_experts_here);
    for (Tensor* tensor : {&each.x, &each.logits, &each.gate_up, &each.down, &each.upstream}) {
      *tensor = tensor->cuda();
    }
    const auto actual = each.results(run_experts_here);
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(at::allclose(or_zero(actual[i]), or_zero(expected[i]), 1e-4, 1e-4));
    }
  }
}
