// The operations as their callers use them, on a card against the CPU: device choice, gradients,
// streams. What the kernels compute is held to the references by the files beside this one.

#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/logsumexp.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "tests/support/card.h"
#include "tests/support/layout.h"

using at::Tensor;
using Tensors = std::vector<Tensor>;

#define MOE_NEED_GPU()                                      \
  if (moe::test::is_emulated() || !moe::test::has_card()) { \
    MOE_SKIP("no GPU");                                     \
  }

namespace {

// f(inputs) and the gradients of its sum with a fixed upstream, on the device, brought back.
template <typename Operation>
Tensors results(const Tensors& inputs, at::Device device, Operation operation) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.to(device).detach().clone().requires_grad_(true));
  }
  const Tensor out = operation(leaves);
  const Tensor upstream = at::linspace(-1, 1, out.numel()).view(out.sizes()).to(device);
  Tensors all = torch::autograd::grad({(out.to(at::kFloat) * upstream).sum()}, leaves);
  all.push_back(out.detach());
  for (Tensor& each : all) {
    each = each.cpu().to(at::kFloat);
  }
  return all;
}

// Sums of up to 200 products of order one in f32, in another order.
template <typename Operation>
void check_on_gpu(const Tensors& inputs, Operation operation) {
  const Tensors actual = results(inputs, at::kCUDA, operation);
  const Tensors expected = results(inputs, at::kCPU, operation);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(at::allclose(actual[i], expected[i], 1e-5, 1e-4));
  }
}

}  // namespace

TEST_CASE("logits in f32 on a GPU equal the CPU's, of f32 and of bf16", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  for (const int64_t experts : {1, 8, 40, 70}) {  // the last is LibTorch's product
    const Tensor x = at::randn({33, 100}), weight = at::randn({experts, 100});
    const auto logits = [](const Tensors& in) { return moe::kernels::linear_in_f32(in[0], in[1]); };
    check_on_gpu({x, weight}, logits);
    const Tensor half = x.to(at::kBFloat16);
    CHECK(at::allclose(moe::kernels::linear_in_f32(half.cuda(), weight.cuda()).cpu(),
                       moe::kernels::linear_in_f32(half, weight), 1e-5, 1e-4));
  }
}

TEST_CASE("rope on a GPU equals the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  const Tensor angle = at::rand({50, 8}), position = at::arange(33, at::kInt);
  check_on_gpu({at::randn({33, 64})}, [&](const Tensors& in) {
    const auto device = in[0].device();
    return moe::kernels::rope(in[0], angle.cos().to(device), angle.sin().to(device),
                              position.to(device), 3, 16);
  });
}

TEST_CASE("rows, weighted sums and gates on a GPU equal the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  const auto plan = moe::test::random_layout(33, 4, 2, 9).plan;
  const auto layout_on = [&](at::Device device) {
    return moe::kernels::lay_out_rows(plan.token.to(device), plan.expert.to(device),
                                      plan.choice.to(device), plan.count.to(device),
                                      plan.rows.to(device), 33, 4);
  };
  for (const bool straight_through : {true, false}) {
    check_on_gpu({at::randn({33, 20}), at::randn({33, 4})}, [&](const Tensors& in) {
      const auto layout = layout_on(in[0].device());
      const Tensor weight = moe::kernels::row_gates(
          in[1], layout, moe::kernels::GateRule::kSelected, straight_through);
      return moe::kernels::combine_rows(moe::kernels::gather_rows(in[0], layout), weight, layout);
    });
  }
}

TEST_CASE("the loss and the scores of rows on a GPU equal the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  const Tensor logits = at::randn({33, 1001}) * 3, target = at::arange(33, at::kLong);
  Tensor there = logits.cuda(), here = logits.clone();
  const auto scores = moe::kernels::row_scores(there);
  const auto expected = moe::kernels::row_scores(here);
  CHECK(at::equal(scores.argmax.cpu(), expected.argmax));
  CHECK(at::allclose(scores.logsumexp.cpu(), expected.logsumexp, 1e-6, 5e-6));
  const double nll = moe::kernels::softmax_nll_(there, target, 0.5);
  CHECK(nll == Approx(moe::kernels::softmax_nll_(here, target, 0.5)).epsilon(1e-6));
  CHECK(at::allclose(there.cpu(), here, 2e-5, 1e-7));
}

TEST_CASE("adamw_ on a GPU equals the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(5);
  const Tensor gradient = at::randn({100}).to(at::kBFloat16), start = at::randn({100});
  const auto updated = [&](at::Device device) {
    const Tensor master = start.to(device, at::kFloat, false, /*copy=*/true);
    const Tensor mean = at::zeros_like(master), square = at::zeros_like(master);
    const Tensor weight = at::zeros_like(master, at::kBFloat16);
    moe::kernels::adamw_(gradient.to(device), master, mean, square, weight,
                         {1e-2, 0.9, 0.999, 1e-8, 0.1, 1}, at::full({1}, 0.5F).to(device));
    return Tensors{master.cpu(), mean.cpu(), square.cpu(), weight.to(at::kFloat).cpu()};
  };
  const Tensors actual = updated(at::kCUDA), expected = updated(at::kCPU);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(at::allclose(actual[i], expected[i], 1e-6, 1e-6));
  }
  CHECK(at::allclose(actual[3], actual[0], 1.0 / (1 << 8), 0));
}
