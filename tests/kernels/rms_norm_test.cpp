#include "tests/kernels/reference/rms_norm.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("rms_norm and rms_norm_of_sum equal the formula in double, with their gradients",
          "[kernels]") {
  at::manual_seed(1);
  const auto run = [](const NormInputs& in, at::ScalarType type) {
    return norm_by_operation(in, type, at::kCPU);
  };
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 4}, {1, 1}, {1, 33}, {31, 7}, {33, 64}, {129, 7}, {300, 64}}) {
    // At most 300 terms of 2^-53; then sums of 300 terms in f32, of 2^-24.
    check_norm(run, rows, width, at::kDouble, at::kDouble, 0, {1e-12, 1e-11, 1e-11, 1e-11, 1e-11});
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const int used : {0, 1, 2, 3}) {
        check_norm(run, rows, width, at::kFloat, type, used, {1e-5, 1e-4, 1e-5, 1e-4, 1e-4});
      }
    }
  }
}

TEST_CASE("rms_norm of a row of zeros is zero with a finite gradient", "[kernels]") {
  const Tensor x = at::zeros({2, 8}).requires_grad_(true);
  const Tensor out = rms_norm(x, at::ones({8}), 1e-6);
  CHECK(out.abs().sum().item<double>() == 0);
  CHECK(torch::autograd::grad({out.sum()}, {x})[0].isfinite().all().item<bool>());
}

TEST_CASE("rms_norm to bf16 is the rounded one, with gradients, without and of a sum",
          "[kernels]") {
  at::manual_seed(7);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 33, 512, 1030}) {
      CAPTURE(rows, width);
      const Tensor x = at::randn({rows, width}), weight = at::randn({width});
      const Tensor expected = rms_norm(x, weight, 1e-5).to(at::kBFloat16);
      CHECK(at::equal(rms_norm_to_bf16(x, weight, 1e-5), expected));
      const Tensor trained = x.clone().requires_grad_(true);
      CHECK(at::equal(rms_norm_to_bf16(trained, weight, 1e-5), expected));
      const auto [sum, y] = rms_norm_of_sum(x, at::zeros_like(expected), weight, 1e-5, true);
      CHECK(at::equal(sum, x));
      CHECK(at::equal(y, expected));
    }
  }
  CHECK_THROWS(rms_norm_of_sum(at::zeros({5, 8}), at::zeros({4, 8}), at::zeros({8}), 1e-5, false));
}
