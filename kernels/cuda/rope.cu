// rope.h on CUDA: one thread a vector of pairs, neighbours in a warp on neighbouring pairs of a
// head. Bound by memory: each number is read and written once; the tables stay in the L2.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/rope.h"

namespace moe::kernels {

namespace {

template <typename T, int kCount>
__global__ void rope_kernel(const T* x,               // [tokens, heads, 2, half]
                            const float* cosine,      // [positions, half]
                            const float* sine,        // [positions, half]
                            const int32_t* position,  // [tokens]
                            T* y,                     // as x
                            RopeShape shape) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t across = shape.half / kCount;
  const int64_t row = index / across;  // of [tokens, heads]
  const int64_t token = row / shape.heads;
  if (token >= shape.tokens) {
    return;
  }
  const int64_t i = (index - row * across) * kCount;
  const int64_t low = row * 2 * shape.half + i, high = low + shape.half;
  auto lows = load<kCount>(x + low), highs = load<kCount>(x + high);
  if (row - token * shape.heads < shape.rotated) {
    const int64_t angle = position[token] * shape.half + i;
    const auto cosines = load<kCount>(cosine + angle), sines = load<kCount>(sine + angle);
    const float sign = shape.backwards ? -1.0F : 1.0F;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float a = widen(lows.at[k]), b = widen(highs.at[k]);
      const float c = cosines.at[k], s = sines.at[k] * sign;
      lows.at[k] = narrow<T>(a * c - b * s);
      highs.at[k] = narrow<T>(b * c + a * s);
    }
  }
  store(y + low, lows);
  store(y + high, highs);
}

template <typename T>
void run(const RopeArgs& args, void* stream) {
  const auto* x = static_cast<const T*>(args.x);
  auto* y = static_cast<T*>(args.y);
  const RopeShape& shape = args.shape;
  const bool vectors = fits_vectors(shape.half, x, y, args.cosine, args.sine);
  const int64_t pairs = shape.tokens * shape.heads * shape.half;
  launch(vectors ? rope_kernel<T, kVector> : rope_kernel<T, 1>,
         ceil_div(pairs / (vectors ? kVector : 1), kThreads), kThreads, stream, x, args.cosine,
         args.sine, args.position, y, shape);
}

}  // namespace

void rope_cuda(const RopeArgs& args, void* stream) {
  args.is_bf16 ? run<__nv_bfloat16>(args, stream) : run<float>(args, stream);
}

}  // namespace moe::kernels
