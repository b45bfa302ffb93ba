// stochastic_round.h on CUDA: one thread an element, neighbours in a warp on neighbouring elements.
// Bound by memory: 6 bytes an element. The arithmetic is the CPU's own (stochastic_round.h).

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/stochastic_round.h"

namespace moe::kernels {

namespace {

__global__ void round_kernel(const float* in,  // [count]
                             uint16_t* out,    // [count] bf16 bits
                             int64_t count, uint64_t key, int64_t first) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  const auto index = static_cast<uint64_t>(first + i);
  const uint32_t draw =
      rounding_draw(key, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32));
  out[i] = round_bits(__float_as_uint(in[i]), draw);
}

}  // namespace

void stochastic_round_cuda(const StochasticRoundArgs& args, void* stream) {
  launch(round_kernel, ceil_div(args.count, kThreads), kThreads, stream, args.in, args.out,
         args.count, args.key, args.first);
}

}  // namespace moe::kernels
