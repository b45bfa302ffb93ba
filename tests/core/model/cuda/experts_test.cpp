// The experts of a routed layer on a GPU against the CPU: with counts that stay on the device if
// the number of rows has a tight bound, and with counts that the host reads otherwise.

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

// Returns pairs of the results on the GPU and on the CPU.
std::vector<std::pair<Tensor, Tensor>> on_both(Case each) {
  const auto expected = each.results();
  each.move_to_gpu();
  const auto actual = each.results();
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (size_t i = 0; i < expected.size(); ++i) {
    pairs.emplace_back(or_zero(actual[i]), or_zero(expected[i]));
  }
  return pairs;
}

}  // namespace

TEST_CASE("the experts of a layer on a GPU equal those on the CPU", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 0}, {31, 0}, {33, 0}, {33, 4}, {33, 3}};  // tokens, rank of adapters (0: none)
  for (const auto* router : {"top1", "top2", "top1+ir+fr", "top2+ir+fr:cf=0.6", "top2:cf=inf",
                             "top2+fr:cf=inf", "topp:0.6", "relu:k=1"}) {
    for (const auto& [tokens, rank] : sizes) {
      CAPTURE(router, tokens, rank);
      for (const auto& [actual, expected] : on_both(random_case(router, tokens, rank))) {
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(actual, expected, 1e-4, 1e-4));
      }
    }
  }
  // bf16: both devices round operands, hidden products and outputs, not always to the same number:
  // 2^-9 each, five times on the longest path, on both sides.
  for (const auto* router : {"top1:cf=inf", "top2:cf=inf", "top2+fr:cf=inf"}) {
    for (const auto& [tokens, rank] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {1, 3}, {33, 0}, {33, 3}, {33, 8}}) {
      CAPTURE(router, tokens, rank);
      Case each = random_case(router, tokens, rank);
      each.inputs[0] = each.inputs[0].to(at::kBFloat16);
      for (const auto& [actual, expected] : on_both(each)) {
        const Tensor truth = expected.to(at::kDouble);
        CHECK((actual.to(at::kDouble) - truth).norm().item<double>() <
              0.02 * truth.norm().item<double>() + 1e-6);
      }
    }
  }
}
