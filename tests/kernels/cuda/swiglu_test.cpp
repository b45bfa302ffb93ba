#include "kernels/ops/swiglu.h"

#include "tests/kernels/reference/swiglu.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

struct Both {
  Tensor out, grad;
};

Both reference(const Tensor& hidden, const Tensor& grad_out) {
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  Both both{at::empty_like(grad_out), at::empty_like(hidden)};
  moe::test::swiglu_forward_reference(hidden.const_data_ptr<float>(), both.out.data_ptr<float>(),
                                      rows, width);
  moe::test::swiglu_backward_reference(grad_out.const_data_ptr<float>(),
                                       hidden.const_data_ptr<float>(), both.grad.data_ptr<float>(),
                                       rows, width);
  return both;
}

Both on_gpu(const Tensor& hidden, const Tensor& grad_out, at::ScalarType type,
            const int32_t* used = nullptr) {
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  const Tensor in = to_gpu(hidden.to(type)), upstream = to_gpu(grad_out.to(type));
  const Both both{poisoned({rows, width}, type), poisoned({rows, 2 * width}, type)};
  const bool is_bf16 = type == at::kBFloat16;
  moe::kernels::swiglu_forward_cuda(
      {in.data_ptr(), both.out.data_ptr(), rows, width, is_bf16, used}, stream_of(in));
  moe::kernels::swiglu_backward_cuda(
      {upstream.data_ptr(), in.data_ptr(), both.grad.data_ptr(), rows, width, is_bf16, used},
      stream_of(in));
  return {both.out.cpu().to(at::kFloat), both.grad.cpu().to(at::kFloat)};
}

// The activation that backward writes where its upstream gradient is, or elsewhere, and its own
// gradient.
Both again_on_gpu(const Tensor& hidden, const Tensor& grad_out, at::ScalarType type, bool in_place,
                  const int32_t* used = nullptr) {
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  const Tensor in = to_gpu(hidden.to(type)), upstream = to_gpu(grad_out.to(type));
  const Both both{in_place ? upstream : poisoned({rows, width}, type),
                  poisoned({rows, 2 * width}, type)};
  moe::kernels::swiglu_backward_cuda(
      {upstream.data_ptr(), in.data_ptr(), both.grad.data_ptr(), rows, width, type == at::kBFloat16,
       used, both.out.data_ptr()},
      stream_of(in));
  return {both.out.cpu().to(at::kFloat), both.grad.cpu().to(at::kFloat)};
}

// f32: 8 roundings of 2^-24 on values below 300. bf16: one more, of 2^-9.
bool close(const Tensor& actual, const Tensor& expected, double epsilon) {
  return at::allclose(actual, expected, 8 * epsilon, 2400.0 / (1 << 24));
}

}  // namespace

TEST_CASE("the swiglu kernels equal the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  for (const int64_t rows : {0, 1, 31, 33, 300}) {
    for (const int64_t width : {1, 7, 12, 33, 64, 300, 1028, 2056}) {  // the last take two blocks
      if (rows == 300 && width > 64) {
        continue;
      }
      CAPTURE(rows, width);
      Tensor hidden = at::randn({rows, 2 * width}).mul_(3).to(at::kBFloat16).to(at::kFloat);
      if (rows > 0) {
        hidden.flatten()[0] = 90.0F;   // sigmoid saturates at 1
        hidden.flatten()[1] = -90.0F;  // and at 0
      }
      const Tensor grad_out = at::randn({rows, width}).to(at::kBFloat16).to(at::kFloat);
      const Both expected = reference(hidden, grad_out);
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        const Both actual = on_gpu(hidden, grad_out, type);
        const double epsilon = type == at::kFloat ? 1.0 / (1 << 24) : 1.0 / (1 << 11);
        CHECK(close(actual.out, expected.out, epsilon));
        CHECK(close(actual.grad, expected.grad, epsilon));
        for (const bool in_place : {true, false}) {
          const Both again = again_on_gpu(hidden, grad_out, type, in_place);
          CHECK(at::equal(again.out, actual.out));
          CHECK(at::equal(again.grad, actual.grad));
        }
      }
    }
  }
}

TEST_CASE("the swiglu kernels leave rows after the used ones alone", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  for (const int64_t width : {3, 8}) {
    for (const int used : {0, 5, 9, 20}) {
      const Tensor hidden = at::randn({9, 2 * width}), grad_out = at::randn({9, width});
      const Tensor limit = to_gpu(at::tensor({used}, at::kInt));
      const Both actual = on_gpu(hidden, grad_out, at::kFloat, limit.const_data_ptr<int32_t>());
      const Both all = on_gpu(hidden, grad_out, at::kFloat);
      const int64_t rows = std::min(used, 9);
      CHECK(at::equal(actual.out.narrow(0, 0, rows), all.out.narrow(0, 0, rows)));
      CHECK(at::equal(actual.grad.narrow(0, 0, rows), all.grad.narrow(0, 0, rows)));
      CHECK(actual.out.narrow(0, rows, 9 - rows).isnan().all().item<bool>());
      CHECK(actual.grad.narrow(0, rows, 9 - rows).isnan().all().item<bool>());
      const Both again = again_on_gpu(hidden, grad_out, at::kFloat, /*in_place=*/true,
                                      limit.const_data_ptr<int32_t>());
      CHECK(at::equal(again.out.narrow(0, 0, rows), all.out.narrow(0, 0, rows)));
      CHECK(at::equal(again.out.narrow(0, rows, 9 - rows), grad_out.narrow(0, rows, 9 - rows)));
    }
  }
}
