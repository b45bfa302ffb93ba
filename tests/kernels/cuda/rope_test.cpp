#include "kernels/ops/rope.h"

#include "tests/kernels/reference/rope.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::kernels::RopeShape;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

TEST_CASE("the rope kernel equals the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 4, 16, 33}) {
      for (const bool backwards : {false, true}) {
        CAPTURE(tokens, half, backwards);
        const RopeShape shape{tokens, 5, 3, half, backwards};
        const Tensor x = at::randn({tokens, 5 * 2 * half}).to(at::kBFloat16).to(at::kFloat);
        const Tensor angle = at::rand({40, half}) * 6;
        const Tensor cosine = angle.cos(), sine = angle.sin();
        const Tensor position = at::arange(tokens, at::kInt).mul(17).remainder(40);
        const Tensor expected = at::empty_like(x);
        moe::test::rope_reference(x.const_data_ptr<float>(), cosine.const_data_ptr<float>(),
                                  sine.const_data_ptr<float>(), position.const_data_ptr<int32_t>(),
                                  expected.data_ptr<float>(), shape);
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          const Tensor in = to_gpu(x.to(type)), c = to_gpu(cosine), s = to_gpu(sine);
          const Tensor at_position = to_gpu(position), y = poisoned(x.sizes(), type);
          moe::kernels::rope_cuda(
              {in.const_data_ptr(), c.const_data_ptr<float>(), s.const_data_ptr<float>(),
               at_position.const_data_ptr<int32_t>(), y.data_ptr(), shape, type == at::kBFloat16},
              stream_of(in));
          // Two products and a sum of numbers below 8; bf16: one more rounding, of 2^-9.
          CHECK(at::allclose(y.cpu().to(at::kFloat), expected,
                             type == at::kFloat ? 0 : 1.0 / (1 << 8), 8 * 3.0 / (1 << 24)));
        }
      }
    }
  }
}
