// The experts of a routed layer on a GPU against the CPU: with counts that stay on the device if
// the number of rows has a tight bound, and with counts that the host reads otherwise.

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/token_dispatcher.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_swiglu.h"
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
        moe::route::route(in[1], router, moe::route::partition_tokens(in[0].size(0), 2));
    const Tensor y = run_local_experts(in[0], routing, experts, 0.5);
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
  struct Run {
    const char* router;
    int64_t tokens, rank;  // rank of adapters; 0: none
    bool is_bf16;
  };
  for (const auto& [router, tokens, rank, is_bf16] :
       {Run{"top1", 1, 0, false}, Run{"top2+ir+fr:cf=0.6", 33, 0, false},
        Run{"top2+ir+fr:cf=0.6", 31, 4, false}, Run{"top1+ir+fr", 33, 3, false},
        Run{"topp:0.6", 33, 4, false}, Run{"relu:k=1", 33, 3, false},
        Run{"top2+fr:cf=inf", 33, 0, false}, Run{"top1:cf=inf", 1, 3, true},
        Run{"top2:cf=inf", 33, 0, true}, Run{"top2:cf=inf", 33, 3, true},
        Run{"top2+fr:cf=inf", 33, 8, true}, Run{"top1:cf=inf", 1, 0, true}}) {
    CAPTURE(router, tokens, rank, is_bf16);
    Case each = random_case(router, tokens, rank);
    each.inputs[0] = is_bf16 ? each.inputs[0].to(at::kBFloat16) : each.inputs[0];
    for (const auto& [actual, expected] : on_both(each)) {
      if (is_bf16) {
        // Both devices round operands, hidden products and outputs, not always to the same number:
        // 2^-9 each, five times on the longest path, on both sides.
        const Tensor truth = expected.to(at::kDouble);
        CHECK((actual.to(at::kDouble) - truth).norm().item<double>() <
              0.02 * truth.norm().item<double>() + 1e-6);
      } else {
        // Sums of up to 33 * 16 terms of order one in f32, in another order.
        CHECK(at::allclose(actual, expected, 1e-4, 1e-4));
      }
    }
  }
}

TEST_CASE("weight gradients of large experts are f32 sums, with counts on the device too",
          "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const std::vector<int64_t> rows_per_expert{5, 0, 9};
  const int64_t width = 1024, inner = 1024;
  const Tensor rows = at::randn({16, width}).to(at::kBFloat16).to(moe::test::kGpu);
  const Tensor upstream = at::randn({16, width}).to(at::kBFloat16).to(moe::test::kGpu);
  const Tensor ends = at::tensor({5, 5, 14}, at::kInt).to(moe::test::kGpu);
  const auto weight = [](int64_t outer, int64_t depth) {
    Tensor made = (at::randn({3, outer, depth}) / 32).to(moe::test::kGpu).requires_grad_(true);
    moe::kernels::keep_bf16_working_copy(made);
    return made;
  };
  const Tensor gate_up = weight(2 * inner, width), down = weight(width, inner);
  REQUIRE(moe::kernels::use_per_expert_gradients(gate_up));
  const auto gradients = [&](const auto& segments) {
    gate_up.mutable_grad() = down.mutable_grad() = Tensor();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // the second is added to the first
      moe::kernels::grouped_swiglu(rows, gate_up, down, segments).backward(upstream);
    }
    return std::vector<Tensor>{gate_up.grad().cpu() / 2, down.grad().cpu() / 2};
  };
  const auto by_device = gradients(ends), by_host = gradients(rows_per_expert);
  for (size_t i = 0; i < by_host.size(); ++i) {
    CAPTURE(i);
    const Tensor& found = by_device[i];
    CHECK(found[1].count_nonzero().item<int64_t>() == 0);
    CHECK(!at::equal(found, found.to(at::kBFloat16).to(at::kFloat)));
    // The operands of both were rounded to bf16 a few times.
    CHECK((found - by_host[i]).norm().item<double>() <=
          4 * 0x1p-8 * by_host[i].norm().item<double>());
  }
}
