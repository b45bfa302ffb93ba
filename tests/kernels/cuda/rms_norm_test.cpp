#include "kernels/ops/rms_norm.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/kernels/reference/rms_norm.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

constexpr double kEpsilon = 1e-5;

struct Results {
  Tensor y, scale, grad_x, grad_weight;
};

Results reference(const Tensor& x, const Tensor& weight, const Tensor& grad) {
  const int64_t rows = x.size(0), width = x.size(1);
  Results all{at::empty_like(x), at::empty({rows}), at::empty_like(x), at::empty_like(weight)};
  moe::test::rms_norm_forward_reference(x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                                        all.y.data_ptr<float>(), all.scale.data_ptr<float>(), rows,
                                        width, kEpsilon);
  moe::test::rms_norm_backward_reference(
      grad.const_data_ptr<float>(), x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
      all.scale.const_data_ptr<float>(), all.grad_x.data_ptr<float>(),
      all.grad_weight.data_ptr<float>(), rows, width);
  return all;
}

// x in `type`, y and its gradient in `out`.
Results on_gpu(const Tensor& x, const Tensor& weight, const Tensor& grad, at::ScalarType type,
               at::ScalarType out) {
  const int64_t rows = x.size(0), width = x.size(1);
  const Tensor in = to_gpu(x.to(type)), by = to_gpu(weight), upstream = to_gpu(grad.to(out));
  const Results all{poisoned({rows, width}, out), poisoned({rows}, at::kFloat),
                    poisoned({rows, width}, type), poisoned({width}, at::kFloat)};
  const Tensor strips = poisoned({moe::kernels::rms_norm_strips(rows), width}, at::kFloat);
  const bool is_bf16 = type == at::kBFloat16, rounds = !is_bf16 && out == at::kBFloat16;
  moe::kernels::rms_norm_forward_cuda(
      {in.const_data_ptr(), by.const_data_ptr<float>(), all.y.data_ptr(),
       all.scale.data_ptr<float>(), rows, width, kEpsilon, is_bf16, rounds},
      stream_of(in));
  moe::kernels::rms_norm_backward_cuda(
      {upstream.const_data_ptr(), in.const_data_ptr(), by.const_data_ptr<float>(),
       all.scale.const_data_ptr<float>(), all.grad_x.data_ptr(), all.grad_weight.data_ptr<float>(),
       rows, width, is_bf16, strips.data_ptr<float>(), rounds},
      stream_of(in));
  return {all.y.cpu().to(at::kFloat), all.scale.cpu(), all.grad_x.cpu().to(at::kFloat),
          all.grad_weight.cpu()};
}

Results on_gpu(const Tensor& x, const Tensor& weight, const Tensor& grad, at::ScalarType type) {
  return on_gpu(x, weight, grad, type, type);
}

Tensor exact_in_bf16(at::IntArrayRef shape) {
  return at::randn(shape).to(at::kBFloat16).to(at::kFloat);
}

}  // namespace

TEST_CASE("the rms_norm kernels equal the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t rows : {0, 1, 31, 33, 200}) {
    for (const int64_t width : {1, 7, 33, 64, 1028, 2056}) {
      CAPTURE(rows, width);
      const Tensor x = exact_in_bf16({rows, width}), grad = exact_in_bf16({rows, width});
      const Tensor weight = at::randn({width});
      const Results expected = reference(x, weight, grad);
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        const Results actual = on_gpu(x, weight, grad, type);
        // f32: short sums a thread, then 8 levels: 32 roundings of 2^-24 on numbers that are below
        // 100 (a row of one element has n = 1 / sqrt(1 + epsilon / x^2), and gradients cancel to
        // epsilon of their terms). bf16: one rounding of 2^-9 more where the result is bf16.
        const double rounding = type == at::kFloat ? 0 : 1.0 / (1 << 8);
        CHECK(at::allclose(actual.scale, expected.scale, 4e-6, 0));
        CHECK(at::allclose(actual.y, expected.y, 4e-6 + rounding, 1e-6));
        CHECK(at::allclose(actual.grad_x, expected.grad_x, 4e-6 + rounding, 2e-4));
        CHECK(at::allclose(actual.grad_weight, expected.grad_weight, 1e-5, 1e-4));
      }
    }
  }
}

TEST_CASE("the rms_norm kernels round y of f32 as they write it, and read its gradient so",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (const int64_t rows : {0, 1, 33}) {
    for (const int64_t width : {1, 7, 64, 1028, 2056}) {
      CAPTURE(rows, width);
      const Tensor x = at::randn({rows, width}), grad = exact_in_bf16({rows, width});
      const Tensor weight = at::randn({width});
      const Results wide = on_gpu(x, weight, grad, at::kFloat);
      const Results rounded = on_gpu(x, weight, grad, at::kFloat, at::kBFloat16);
      // Threads take eight numbers in place of four, so that sums have another order; what is then
      // rounded may go to the next number of bf16.
      CHECK(at::allclose(rounded.scale, wide.scale, 4e-6, 0));
      CHECK(at::allclose(rounded.y, wide.y, 1.0 / (1 << 8), 0));
      CHECK(at::equal(rounded.y, rounded.y.to(at::kBFloat16).to(at::kFloat)));
      CHECK(at::allclose(rounded.grad_x, wide.grad_x, 4e-6, 2e-4));
      CHECK(at::allclose(rounded.grad_weight, wide.grad_weight, 1e-5, 1e-4));
    }
  }
}

TEST_CASE("the rms_norm kernels give the same bits twice", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const Tensor x = at::randn({150, 40}), weight = at::randn({40}), grad = at::randn({150, 40});
  const Results first = on_gpu(x, weight, grad, at::kFloat);
  const Results second = on_gpu(x, weight, grad, at::kFloat);
  CHECK(at::equal(first.grad_weight, second.grad_weight));
  CHECK(at::equal(first.grad_x, second.grad_x));
}

TEST_CASE("rms_norm in bf16 on a GPU has the numbers of rounding f32, and its gradients",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const Tensor x = at::randn({33, 64}).to(moe::test::kGpu).requires_grad_(true);
  const Tensor weight = at::randn({64}).to(moe::test::kGpu).requires_grad_(true);
  const Tensor grad = at::randn({33, 64}).to(moe::test::kGpu, at::kBFloat16);
  const auto results = [&](const Tensor& y) {
    REQUIRE(y.scalar_type() == at::kBFloat16);
    const auto all = torch::autograd::grad({y}, {x, weight}, {grad});
    REQUIRE(all[0].scalar_type() == at::kFloat);
    return std::vector<Tensor>{y.detach().cpu().to(at::kFloat), all[0].cpu(), all[1].cpu()};
  };
  const auto fused = results(moe::kernels::rms_norm_to_bf16(x, weight, kEpsilon));
  const auto apart = results(moe::kernels::rms_norm(x, weight, kEpsilon).to(at::kBFloat16));
  for (size_t i = 0; i < fused.size(); ++i) {
    CHECK(at::allclose(fused[i], apart[i], i == 0 ? 1.0 / (1 << 8) : 4e-6, 1e-5));
  }
}

TEST_CASE("rms_norm on a GPU has the gradients of the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(8);
  const Tensor x = at::randn({33, 64}), weight = at::randn({64}), grad = at::randn({33, 64});
  const auto gradients = [&](at::Device device) {
    const Tensor in = x.to(device).requires_grad_(true),
                 by = weight.to(device).requires_grad_(true);
    const Tensor y = moe::kernels::rms_norm(in, by, kEpsilon);
    const auto all = torch::autograd::grad({y}, {in, by}, {grad.to(device)});
    return std::vector<Tensor>{y.detach().cpu(), all[0].cpu(), all[1].cpu()};
  };
  const auto actual = gradients(moe::test::kGpu), expected = gradients(at::kCPU);
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK(at::allclose(actual[i], expected[i], 1e-5, 1e-5));
  }
}
