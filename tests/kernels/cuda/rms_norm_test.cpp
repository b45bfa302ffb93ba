#include "tests/kernels/reference/rms_norm.h"

#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

// f32: short sums a thread, then 8 levels: 32 roundings of 2^-24 on numbers that are below 100 (a
// row of one element has n = 1 / sqrt(1 + epsilon / x^2), and gradients cancel to epsilon of their
// terms).
constexpr NormTolerance kTolerance = {4e-6, 4e-6, 2e-4, 1e-5, 1e-4};

NormResults on_gpu(const NormInputs& in, at::ScalarType type) {
  const int64_t rows = in.x.size(0), width = in.x.size(1);
  const bool has_sum = in.added.defined(), is_bf16 = in.x.scalar_type() == at::kBFloat16;
  const bool rounds = !is_bf16 && type == at::kBFloat16;
  const Tensor x = to_gpu(in.x), weight = to_gpu(in.weight), upstream = to_gpu(in.grad);
  const Tensor added = has_sum ? to_gpu(in.added) : x, grad_sum = has_sum ? to_gpu(in.grad_sum) : x;
  const Tensor sum = has_sum ? poisoned(x.sizes(), at::kFloat) : x;
  const Tensor y = poisoned(x.sizes(), type), scale = poisoned({rows}, at::kFloat);
  const Tensor grad_x = poisoned(x.sizes(), x.scalar_type()),
               grad_added = poisoned(x.sizes(), type);
  const Tensor grad_weight = poisoned({width}, at::kFloat);
  const Tensor strips = poisoned({rms_norm_strips(rows), width}, at::kFloat);
  rms_norm_forward_cuda(
      {x.const_data_ptr(), weight.const_data_ptr<float>(), y.data_ptr(), scale.data_ptr<float>(),
       rows, width, kNormEpsilon, is_bf16, rounds, has_sum ? added.const_data_ptr() : nullptr,
       has_sum ? sum.data_ptr<float>() : nullptr},
      stream_of(x));
  rms_norm_backward_cuda(
      {upstream.const_data_ptr(), sum.const_data_ptr(), weight.const_data_ptr<float>(),
       scale.const_data_ptr<float>(), grad_x.data_ptr(), grad_weight.data_ptr<float>(), rows, width,
       is_bf16, strips.data_ptr<float>(), rounds,
       has_sum ? grad_sum.const_data_ptr<float>() : nullptr,
       has_sum && rounds ? grad_added.data_ptr() : nullptr},
      stream_of(x));
  return {has_sum ? sum.cpu() : Tensor(), y.cpu(), grad_x.cpu(),
          has_sum && rounds ? grad_added.cpu() : Tensor(), grad_weight.cpu()};
}

}  // namespace

TEST_CASE("the rms_norm kernels equal the formula in double on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 33}, {1, 1}, {31, 7}, {33, 1}, {33, 64}, {200, 33}, {3, 1028}, {2, 2056}}) {
    check_norm(on_gpu, rows, width, at::kFloat, at::kFloat, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kBFloat16, at::kBFloat16, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kBFloat16, 0, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kFloat, 3, kTolerance);
    check_norm(on_gpu, rows, width, at::kFloat, at::kBFloat16, 3, kTolerance);
  }
}

TEST_CASE("rms_norm on a GPU has the formula's gradients, whichever results are used",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(12);
  const auto run = [](const NormInputs& in, at::ScalarType type) {
    return norm_by_operation(in, type, kGpu);
  };
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int used : {0, 1, 2, 3}) {
      check_norm(run, 33, 64, at::kFloat, type, used, kTolerance);
    }
  }
}

TEST_CASE("the rms_norm kernels give the same bits in any order of threads", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const NormInputs in{at::randn({150, 40}), {}, at::randn({40}), at::randn({150, 40}), {}};
  in_two_orders([&] {
    const NormResults all = on_gpu(in, at::kFloat);
    return std::vector<Tensor>{all.y, all.grad_x, all.grad_weight};
  });
}
