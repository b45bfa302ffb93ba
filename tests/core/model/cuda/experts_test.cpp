// The experts of a routed layer on a GPU against the CPU: with counts that stay on the device,
// where the plan's room is tight, and with counts that are read back, where it is not.

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/token_dispatcher.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::model;

namespace {

struct Case {
  // x, logits, gate_up, down; then A and B of the adapters of gate_up and of down, if any.
  std::vector<Tensor> inputs;
  Tensor upstream;
  moe::route::RouterSettings router;

  void move_to_gpu() {
    for (Tensor& tensor : inputs) {
      tensor = tensor.to(moe::test::kGpu);
    }
    upstream = upstream.to(moe::test::kGpu);
  }

  // y, and the gradients of all inputs.
  std::vector<Tensor> results() const {
    std::vector<Tensor> in;
    for (const Tensor& tensor : inputs) {
      in.push_back(tensor.detach().clone().requires_grad_(true));
    }
    const Experts experts = in.size() == 4
                                ? Experts(in[2], in[3])
                                : Experts(in[2], in[3], {in[4], in[5], 2.0}, {in[6], in[7], 2.0});
    const auto routing =
        moe::route::route(in[1], router, moe::route::spread_over_ranks(in[0].size(0), 2));
    const Tensor y = local_dispatcher()->run(in[0], routing, experts, 0.5);
    auto all = torch::autograd::grad({y}, in, {upstream}, {}, false, /*allow_unused=*/true);
    all.push_back(y.detach());
    return all;
  }
};

Case random_case(const std::string& router, int64_t tokens, int64_t rank) {
  const auto make = [](at::IntArrayRef shape) { return at::randn(shape) / 2; };
  Case random{{make({tokens, 16}), make({tokens, 4}) * 4, make({4, 16, 16}), make({4, 16, 8})},
              make({tokens, 16}),
              moe::route::parse_router(router)};
  if (rank > 0) {
    for (const Tensor& each :
         {make({4, rank, 16}), make({4, 16, rank}), make({4, rank, 8}), make({4, 16, rank})}) {
      random.inputs.push_back(each);
    }
  }
  return random;
}

Tensor or_zero(const Tensor& gradient) {
  return gradient.defined() ? gradient.cpu() : at::zeros({1});
}

}  // namespace

TEST_CASE("a layer's experts on a GPU equal the CPU's", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  for (const auto* router : {"top1", "top2", "top1+ir+fr", "top2+ir+fr:cf=0.6", "top2:cf=inf",
                             "top2+fr:cf=inf", "topp:0.6", "relu:k=1"}) {
    for (const auto& [tokens, rank] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 0}, {31, 0}, {33, 0}, {33, 4}, {33, 3}}) {  // rank 0: no adapters
      CAPTURE(router, tokens, rank);
      Case each = random_case(router, tokens, rank);
      const auto expected = each.results();
      each.move_to_gpu();
      const auto actual = each.results();
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(or_zero(actual[i]), or_zero(expected[i]), 1e-4, 1e-4));
      }
    }
  }
}

// Both devices round operands, hidden products and outputs to bf16, not always to the same number:
// by 2^-9 each time, five times on the longest way, on both sides.
TEST_CASE("a layer of top-k without a capacity equals the CPU's in bf16, with counts on the device",
          "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(5);
  for (const auto* router : {"top1:cf=inf", "top2:cf=inf", "top2+fr:cf=inf"}) {
    for (const int64_t tokens : {1, 33}) {
      for (const int64_t rank : {0, 3, 8}) {
        CAPTURE(router, tokens, rank);
        Case each = random_case(router, tokens, rank);
        each.inputs[0] = each.inputs[0].to(at::kBFloat16);
        const auto expected = each.results();
        each.move_to_gpu();
        const auto actual = each.results();
        for (size_t i = 0; i < expected.size(); ++i) {
          CAPTURE(i);
          const Tensor truth = or_zero(expected[i]).to(at::kDouble);
          const Tensor apart = or_zero(actual[i]).to(at::kDouble) - truth;
          CHECK(apart.norm().item<double>() < 0.02 * truth.norm().item<double>() + 1e-6);
        }
      }
    }
  }
}
