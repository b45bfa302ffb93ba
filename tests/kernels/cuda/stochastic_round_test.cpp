#include "kernels/ops/adamw.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

TEST_CASE("the kernel rounds every number as the CPU does", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  for (const int64_t count : {0, 1, 31, 33, 1000}) {
    const Tensor in = at::randn({count}), expected = at::empty({count}, at::kBFloat16);
    moe::kernels::stochastic_round(in, expected, 0x1234567887654321, (int64_t{1} << 32) - 40);
    const Tensor there = to_gpu(in), out = poisoned({count}, at::kBFloat16);
    moe::kernels::stochastic_round_cuda(
        {there.const_data_ptr<float>(), static_cast<uint16_t*>(out.data_ptr()), count,
         0x1234567887654321, (int64_t{1} << 32) - 40},
        stream_of(there));
    CHECK(at::equal(out.cpu(), expected));
  }
}
