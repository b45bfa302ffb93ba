// Checks, picks the device. The CPU's loop is integers of 32 bits only, so that the compiler makes
// vectors of it.

#include "kernels/ops/stochastic_round.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/device.h"
#include "kernels/ops/stochastic_round_bits.h"

namespace moe::kernels {

namespace {

// Elements whose indices share their upper half; `low` is the lower half of the first.
MOE_VECTOR_CLONES void round_run(const float* in, uint16_t* out, int64_t count, uint64_t key,
                                 uint32_t low, uint32_t high) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t draw = rounding_draw(key, low + static_cast<uint32_t>(i), high);
    out[i] = round_bits(std::bit_cast<uint32_t>(in[i]), draw);
  }
}

void round_on_cpu(const float* in, uint16_t* out, int64_t count, uint64_t key, int64_t first) {
  constexpr int64_t kGrain = 16384;
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t index = first + begin;
      const int64_t high = index >> 32;
      const int64_t stop = std::min(end, ((high + 1) << 32) - first);
      round_run(in + begin, out + begin, stop - begin, key, static_cast<uint32_t>(index),
                static_cast<uint32_t>(high));
      begin = stop;
    }
  });
}

}  // namespace

void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first) {
  TORCH_CHECK(in.sizes() == out.sizes() && in.is_contiguous() && out.is_contiguous() &&
                  in.scalar_type() == at::kFloat && out.scalar_type() == at::kBFloat16,
              "in is ", in.toString(), in.sizes(), ", out is ", out.toString(), out.sizes());
  const float* from = in.const_data_ptr<float>();
  if (in.is_cuda()) {
    stochastic_round_cuda(from, out.mutable_data_ptr(), in.numel(), key, first, current_stream(in));
    return;
  }
  round_on_cpu(from, static_cast<uint16_t*>(out.mutable_data_ptr()), in.numel(), key, first);
}

}  // namespace moe::kernels
