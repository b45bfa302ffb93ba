// The operations as their callers use them, on a GPU against the CPU: device choice, gradients,
// streams. What the kernels compute is held to the references by the files beside this one.

#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"
#include "kernels/ops/rope.h"
#include "tests/kernels/reference/adamw.h"
#include "tests/kernels/reference/cross_entropy.h"
#include "tests/support/gpu.h"
#include "tests/support/segments.h"

using at::Tensor;
using moe::test::kGpu;
using Tensors = std::vector<Tensor>;

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
  const Tensors actual = results(inputs, kGpu, operation);
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
    // bf16 x: its gradient is rounded once to bf16, that of the weight is in f32.
    const auto gradients = [&](at::Device device) {
      const Tensor in = x.to(device, at::kBFloat16).detach().requires_grad_(true);
      const Tensor by = weight.to(device).detach().clone().requires_grad_(true);
      const Tensor upstream = at::linspace(-1, 1, 33 * experts).view({33, experts}).to(device);
      return torch::autograd::grad({moe::kernels::linear_in_f32(in, by)}, {in, by}, {upstream});
    };
    const auto actual = gradients(kGpu), expected = gradients(at::kCPU);
    CHECK(actual[0].scalar_type() == at::kBFloat16);
    CHECK(at::allclose(actual[0].cpu().to(at::kFloat), expected[0].to(at::kFloat), 1.0 / (1 << 7),
                       1e-4));
    CHECK(at::allclose(actual[1].cpu(), expected[1], 1e-5, 1e-4));
    const Tensor half = x.to(at::kBFloat16);
    CHECK(at::allclose(moe::kernels::linear_in_f32(half.to(kGpu), weight.to(kGpu)).cpu(),
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
  const Tensor x = at::randn({33, 64});  // four heads, of which the last is a value
  const auto halves = [&](at::Device device) {
    const Tensor there = x.to(device).clone(), heads = x.to(device).view({33, 4, 16});
    const Tensor c = angle.cos().to(device), s = angle.sin().to(device);
    moe::kernels::rope_(there, c, s, position.to(device), 3, 16);
    const Tensor grad =
        moe::kernels::rope_backward(heads.narrow(1, 0, 2), heads.narrow(1, 2, 1),
                                    heads.narrow(1, 3, 1), c, s, position.to(device));
    return Tensors{there.cpu(), grad.cpu()};
  };
  const Tensors actual = halves(kGpu), expected = halves(at::kCPU);
  CHECK(at::allclose(actual[0], expected[0], 1e-6, 1e-6));
  CHECK(at::allclose(actual[1], expected[1], 1e-6, 1e-6));
}

TEST_CASE("rows go to experts' segments and back on a GPU as on the CPU", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  const auto plan = moe::test::random_segments(33, 4, 2, 9).plan;
  const int64_t rows = plan.rows.sum().item<int64_t>();
  const auto used = [&](const Tensor& list, at::Device device) {
    return list.narrow(0, 0, rows).to(device);
  };
  // x to rows in the plan's order, and back by the weight of each.
  check_on_gpu({at::randn({33, 20}), at::randn({rows})}, [&](const Tensors& in) {
    const auto device = in[0].device();
    const auto permutation =
        moe::kernels::permutation_of(used(plan.token, device), used(plan.choice, device), 33, 4);
    return moe::kernels::unpermute(moe::kernels::permute(in[0], permutation), permutation, in[1]);
  });
  // The same by way of segments, which only a GPU has.
  check_on_gpu({at::randn({33, 20}), at::randn({rows})}, [&](const Tensors& in) {
    const auto device = in[0].device();
    if (device.is_cpu()) {
      const auto permutation =
          moe::kernels::permutation_of(used(plan.token, device), used(plan.choice, device), 33, 4);
      return moe::kernels::unpermute(moe::kernels::permute(in[0], permutation), permutation, in[1]);
    }
    const auto segmented =
        moe::kernels::segment_rows(plan.token.to(device), plan.expert.to(device),
                                   plan.choice.to(device), plan.rows.to(device), 33, 4);
    const Tensor weight = at::zeros({segmented.permutation.token.size(0)}, in[1].options())
                              .index_copy(0, segmented.row_of_plan.narrow(0, 0, rows), in[1]);
    return moe::kernels::unpermute(moe::kernels::permute(in[0], segmented.permutation),
                                   segmented.permutation, weight);
  });
  // Added to a residual, which a GPU does as it writes.
  check_on_gpu({at::randn({33, 20}), at::randn({rows}), at::randn({33, 20})},
               [&](const Tensors& in) {
                 const auto device = in[0].device();
                 const auto permutation = moe::kernels::permutation_of(
                     used(plan.token, device), used(plan.choice, device), 33, 4);
                 return moe::kernels::unpermute(moe::kernels::permute(in[0], permutation),
                                                permutation, in[1], in[2]);
               });
  // A permutation by an index, whose gradient is the other way.
  const Tensor index = at::tensor({4, 0, 2}, at::kLong);
  check_on_gpu({at::randn({5, 20})}, [&](const Tensors& in) {
    const auto permutation = moe::kernels::permutation_of(index.to(in[0].device()), 5);
    return moe::kernels::unpermute(moe::kernels::permute(in[0], permutation), permutation);
  });
}

TEST_CASE("the loss and the log-sum-exp of rows on a GPU equal the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  const Tensor logits = at::randn({33, 1001}) * 3, target = at::arange(33, at::kLong);
  Tensor there = logits.to(kGpu), here = logits.clone();
  Tensor logsumexp, argmax, expected_logsumexp, expected_argmax;
  moe::kernels::logsumexp_argmax(there, logsumexp, argmax);
  moe::kernels::logsumexp_argmax(here, expected_logsumexp, expected_argmax);
  CHECK(at::equal(argmax.cpu(), expected_argmax));
  CHECK(at::allclose(logsumexp.cpu(), expected_logsumexp, 1e-6, 5e-6));
  const double loss = moe::test::cross_entropy_sum(there, target, 0.5);
  CHECK(loss == Approx(moe::test::cross_entropy_sum(here, target, 0.5)).epsilon(1e-6));
  CHECK(at::allclose(there.cpu(), here, 2e-5, 1e-7));
}

TEST_CASE("the loss on a GPU leaves its gradient in bf16 where the logits were", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  const Tensor logits = at::randn({9, 35}) * 3, target = at::arange(9, at::kLong).to(kGpu);
  Tensor wide = logits.to(kGpu), there = logits.to(kGpu);
  const double sum = moe::test::cross_entropy_sum(wide, target, 0.5);
  const Tensor loss = at::empty({9}, wide.options().dtype(at::kDouble));
  const Tensor gradient = moe::kernels::cross_entropy_(there, target, 0.5, loss, /*in_bf16=*/true);
  CHECK(loss.cpu().sum().item<double>() == Approx(sum).epsilon(1e-12));
  CHECK(gradient.is_alias_of(there));
  CHECK(at::equal(gradient.cpu(), wide.cpu().to(at::kBFloat16)));
}

TEST_CASE("a product in bf16 is added to f32 without memory of its own", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const Tensor left = at::randn({1024, 5}).to(at::kBFloat16);
  const Tensor right = at::randn({5, 1024}).to(at::kBFloat16), start = at::randn({1024, 1024});
  const Tensor a = left.to(kGpu), b = right.to(kGpu);
  Tensor out = start.to(kGpu);
  at::mm(a.narrow(0, 0, 1), b, at::kFloat);  // libraries take what they need
  const uint64_t before = moe::kernels::gpu_peak_bytes(0);
  moe::kernels::operand_product_out(out, {a, at::kBFloat16}, {b, at::kBFloat16},
                                    /*accumulate=*/true);
  CHECK(moe::kernels::gpu_peak_bytes(0) < before + out.nbytes() / 2);
  // Five products of order one and a sum, in f32.
  const Tensor expected = start.to(at::kDouble) + left.to(at::kDouble).mm(right.to(at::kDouble));
  CHECK(at::allclose(out.cpu().to(at::kDouble), expected, 1e-6, 1e-5));
}

TEST_CASE("adamw_ on a GPU has the numbers of the reference", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(5);
  const Tensor gradient = at::randn({100}).to(at::kBFloat16), start = at::randn({100});
  const moe::kernels::AdamWSettings settings{1e-2, 0.9, 0.999, 1e-8, 0.1, 1};
  const Tensor master = start.to(kGpu);
  const Tensor mean = at::zeros_like(master), square = at::zeros_like(master);
  const Tensor weight = at::zeros_like(master, at::kBFloat16);
  moe::kernels::adamw_(gradient.to(kGpu), master, mean, square, weight, settings,
                       at::full({1}, 0.5F).to(kGpu));
  const Tensor expected = start.clone(), expected_mean = at::zeros({100});
  const Tensor expected_square = at::zeros({100});
  const float scale = 0.5F;
  moe::test::adamw_reference(
      {gradient.const_data_ptr(), /*gradient_is_bf16=*/true, expected.data_ptr<float>(),
       expected_mean.data_ptr<float>(), expected_square.data_ptr<float>(), nullptr, &scale, 100},
      settings);
  CHECK(at::allclose(master.cpu(), expected, 1e-6, 1e-6));
  CHECK(at::allclose(mean.cpu(), expected_mean, 1e-6, 1e-6));
  CHECK(at::allclose(square.cpu(), expected_square, 1e-6, 1e-6));
  CHECK(at::equal(weight.cpu(), master.cpu().to(at::kBFloat16)));
}
