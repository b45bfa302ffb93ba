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

struct SumResults {
  Tensor sum;
  Results normed;
  Tensor grad_added;  // of bf16 alone
};

// x in f32; `added`, y and its gradient in `out`.
SumResults sum_on_gpu(const Tensor& x, const Tensor& added, const Tensor& weight,
                      const Tensor& grad, const Tensor& grad_sum, at::ScalarType out) {
  const int64_t rows = x.size(0), width = x.size(1);
  const Tensor in = to_gpu(x), other = to_gpu(added.to(out)), by = to_gpu(weight);
  const Tensor upstream = to_gpu(grad.to(out)), upstream_sum = to_gpu(grad_sum);
  const Results all{poisoned({rows, width}, out), poisoned({rows}, at::kFloat),
                    poisoned({rows, width}, at::kFloat), poisoned({width}, at::kFloat)};
  const Tensor sum = poisoned({rows, width}, at::kFloat), grad_added = poisoned({rows, width}, out);
  const Tensor strips = poisoned({moe::kernels::rms_norm_strips(rows), width}, at::kFloat);
  const bool rounds = out == at::kBFloat16;
  moe::kernels::rms_norm_forward_cuda(
      {in.const_data_ptr(), by.const_data_ptr<float>(), all.y.data_ptr(),
       all.scale.data_ptr<float>(), rows, width, kEpsilon, false, rounds, other.const_data_ptr(),
       sum.data_ptr<float>()},
      stream_of(in));
  moe::kernels::rms_norm_backward_cuda(
      {upstream.const_data_ptr(), sum.const_data_ptr(), by.const_data_ptr<float>(),
       all.scale.const_data_ptr<float>(), all.grad_x.data_ptr(), all.grad_weight.data_ptr<float>(),
       rows, width, false, strips.data_ptr<float>(), rounds, upstream_sum.const_data_ptr<float>(),
       rounds ? grad_added.data_ptr() : nullptr},
      stream_of(in));
  return {sum.cpu(),
          {all.y.cpu().to(at::kFloat), all.scale.cpu(), all.grad_x.cpu(), all.grad_weight.cpu()},
          grad_added.cpu()};
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

TEST_CASE("the rms_norm kernels add as they norm, and write both gradients of the sum",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(11);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 7, 64, 1028, 2056}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(rows, width, static_cast<int>(type));
        const Tensor x = at::randn({rows, width}), added = exact_in_bf16({rows, width});
        const Tensor grad = exact_in_bf16({rows, width}), grad_sum = at::randn({rows, width});
        const Tensor weight = at::randn({width});
        const Results expected = reference(x + added, weight, grad);
        const SumResults actual = sum_on_gpu(x, added, weight, grad, grad_sum, type);
        // As above, and one rounding more of numbers below 100.
        const double rounding = type == at::kFloat ? 0 : 1.0 / (1 << 8);
        CHECK(at::equal(actual.sum, x + added));
        CHECK(at::allclose(actual.normed.scale, expected.scale, 4e-6, 0));
        CHECK(at::allclose(actual.normed.y, expected.y, 4e-6 + rounding, 1e-6));
        CHECK(at::allclose(actual.normed.grad_x, expected.grad_x + grad_sum, 4e-6, 2e-4));
        CHECK(at::allclose(actual.normed.grad_weight, expected.grad_weight, 1e-5, 1e-4));
        if (type == at::kBFloat16) {
          CHECK(at::equal(actual.grad_added, actual.normed.grad_x.to(type)));
        }
        // What adding first gives, bit for bit where nothing is multiplied and added at once.
        const Results apart = on_gpu(x + added, weight, grad, at::kFloat, type);
        CHECK(at::equal(actual.normed.y, apart.y));
        CHECK(at::equal(actual.normed.scale, apart.scale));
        CHECK(at::equal(actual.normed.grad_weight, apart.grad_weight));
      }
    }
  }
}

TEST_CASE("rms_norm_of_sum on a GPU has the numbers and gradients of adding first",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(12);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const bool to_bf16 = type == at::kBFloat16;
    const auto leaf = [&](const Tensor& values) {
      return values.to(moe::test::kGpu).requires_grad_(true);
    };
    const std::vector<Tensor> leaves = {leaf(at::randn({33, 64})),
                                        leaf(at::randn({33, 64}).to(type)), leaf(at::randn({64}))};
    const auto& [x, added, weight] = std::tie(leaves[0], leaves[1], leaves[2]);
    const std::vector<Tensor> upstream = {at::randn({33, 64}).to(moe::test::kGpu),
                                          at::randn({33, 64}).to(moe::test::kGpu, type)};
    const auto results = [&](const std::vector<Tensor>& both, int used) {
      REQUIRE(both[1].scalar_type() == type);
      std::vector<Tensor> outputs, gradients;
      for (size_t i = 0; i < 2; ++i) {
        if ((used >> i & 1) != 0) {
          outputs.push_back(both[i]);
          gradients.push_back(upstream[i]);
        }
      }
      auto all = torch::autograd::grad(outputs, leaves, gradients, std::nullopt,
                                       /*create_graph=*/false, /*allow_unused=*/true);
      REQUIRE(all[1].scalar_type() == type);
      all.insert(all.end(), {both[0].detach(), both[1].detach()});
      return all;
    };
    for (const int used : {1, 2, 3}) {  // the sum, its norm, both
      CAPTURE(static_cast<int>(type), used);
      const auto [sum, y] = moe::kernels::rms_norm_of_sum(x, added, weight, kEpsilon, to_bf16);
      const auto fused = results({sum, y}, used);
      const Tensor total = x + added;
      const auto apart =
          results({total, to_bf16 ? moe::kernels::rms_norm_to_bf16(total, weight, kEpsilon)
                                  : moe::kernels::rms_norm(total, weight, kEpsilon)},
                  used);
      for (size_t i = 0; i < apart.size(); ++i) {
        CAPTURE(i);
        REQUIRE(fused[i].defined() == apart[i].defined());
        if (apart[i].defined()) {
          // One rounding of f32 less; that may take a gradient in bf16 to its neighbour.
          const double rounding = apart[i].scalar_type() == at::kBFloat16 ? 1.0 / (1 << 7) : 4e-6;
          CHECK(at::allclose(fused[i].cpu().to(at::kFloat), apart[i].cpu().to(at::kFloat), rounding,
                             1e-6));
        }
      }
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
