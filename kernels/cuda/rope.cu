// rope.h on CUDA: a thread rotates a vector of pairs; lanes access adjacent pairs of a head. Bound
// by memory: each element is read and written once, 16 bytes at a time if the head width allows.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/rope.h"

namespace moe::kernels {

namespace {

template <typename T>
__device__ const T* head_ptr(const RopeParts& parts, int64_t token, int64_t head, int64_t half) {
  const int64_t first = parts.heads[0], both = first + parts.heads[1];
  const bool is_first = head < first, is_second = head < both;
  const void* x = is_first ? parts.x[0] : is_second ? parts.x[1] : parts.x[2];
  const int64_t heads = is_first ? first : is_second ? parts.heads[1] : parts.heads[2];
  const int64_t before = is_first ? 0 : is_second ? first : both;
  return static_cast<const T*>(x) + (token * heads + head - before) * 2 * half;
}

template <typename T, int kCount>
__global__ void rope_kernel(
    RopeParts parts,          // concatenated [tokens, heads, 2, half]
    const float* cosine,      // [positions, half]
    const float* sine,        // [positions, half]
    const int32_t* position,  // [tokens]
    T* y,                     // [tokens, heads, 2, half]
    RopeShape shape,
    int64_t written) {  // the first `written` heads of each token are written
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t across = shape.half / kCount;
  const int64_t row = index / across;  // of [tokens, written]
  const int64_t token = row / written;
  if (token >= shape.tokens) {
    return;
  }
  const int64_t head = row - token * written;
  const int64_t i = (index - row * across) * kCount;
  const T* x = head_ptr<T>(parts, token, head, shape.half) + i;
  auto lows = load<kCount>(x), highs = load<kCount>(x + shape.half);
  if (head < shape.rotated) {
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
  T* to = y + (token * shape.heads + head) * 2 * shape.half + i;
  store(to, lows);
  store(to + shape.half, highs);
}

template <typename T>
void run(const RopeArgs& args, void* stream) {
  const RopeParts& parts = args.parts;
  const RopeShape& shape = args.shape;
  const int64_t written = parts.x[0] == args.y ? shape.rotated : shape.heads;
  const bool vectors = fits_vectors<kWidest<T>>(shape.half, parts.x[0], parts.x[1], parts.x[2],
                                                args.y, args.cosine, args.sine);
  const int64_t pairs = shape.tokens * written * shape.half;
  launch(vectors ? rope_kernel<T, kWidest<T>> : rope_kernel<T, 1>,
         ceil_div(pairs / (vectors ? kWidest<T> : 1), kThreads), kThreads, stream, parts,
         args.cosine, args.sine, args.position, args.y, shape, written);
}

}  // namespace

void rope_cuda(const RopeArgs& args, void* stream) {
  args.is_bf16 ? run<__nv_bfloat16>(args, stream) : run<float>(args, stream);
}

}  // namespace moe::kernels
