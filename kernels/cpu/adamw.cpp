// Stochastic rounding on the CPU (adamw.h), in 32-bit integers, which the compiler vectorises.

#include "kernels/ops/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Rounds elements whose indices share their upper half; `low` is the lower half of the first.
MOE_VECTOR_CLONES void round_run(const float* in, uint16_t* out, int64_t count, uint64_t key,
                                 uint32_t low, uint32_t high) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t draw = rounding_draw(key, low + static_cast<uint32_t>(i), high);
    out[i] = round_bits(std::bit_cast<uint32_t>(in[i]), draw);
  }
}

}  // namespace

void stochastic_round_cpu(const StochasticRoundArgs& args) {
  constexpr int64_t kGrain = 16384;
  at::parallel_for(0, args.count, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t index = args.first + begin;
      const int64_t high = index >> 32;
      const int64_t stop = std::min(end, ((high + 1) << 32) - args.first);
      round_run(args.in + begin, args.out + begin, stop - begin, args.key,
                static_cast<uint32_t>(index), static_cast<uint32_t>(high));
      begin = stop;
    }
  });
}

}  // namespace moe::kernels
