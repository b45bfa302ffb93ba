// adamw.h on CUDA. AdamW: four parameters per thread, each read and written once. Stochastic
// rounding: one element per thread, 6 bytes per element. Both are bound by memory.

#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/adamw.h"

namespace moe::kernels {

namespace {

// Factors shared by all parameters, computed in f64 on the host.
struct Factors {
  float decay;                       // 1 - lr * weight_decay
  float beta1, rest1, beta2, rest2;  // rest = 1 - beta
  float step;                        // lr / (1 - beta1^t)
  float root;                        // 1 / sqrt(1 - beta2^t)
  float eps;
};

template <typename G, int kCount>
__global__ void adamw_kernel(const G* gradient, float* master, float* mean, float* square,
                             __nv_bfloat16* weight,        // may be null
                             const float* gradient_scale,  // may be null
                             int64_t count, Factors factors) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (i >= count) {
    return;
  }
  const float scale = gradient_scale != nullptr ? *gradient_scale : 1.0F;
  const auto gradients = load<kCount>(gradient + i);
  auto masters = load<kCount>(master + i), means = load<kCount>(mean + i);
  auto squares = load<kCount>(square + i);
  Pack<__nv_bfloat16, kCount> weights;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float g = widen(gradients.at[k]) * scale;
    const float m = factors.beta1 * means.at[k] + factors.rest1 * g;
    const float v = factors.beta2 * squares.at[k] + factors.rest2 * g * g;
    means.at[k] = m;
    squares.at[k] = v;
    masters.at[k] =
        masters.at[k] * factors.decay - factors.step * m / (sqrtf(v) * factors.root + factors.eps);
    weights.at[k] = __float2bfloat16(masters.at[k]);
  }
  store(master + i, masters);
  store(mean + i, means);
  store(square + i, squares);
  if (weight != nullptr) {
    store(weight + i, weights);
  }
}

template <typename G>
void run(const AdamWArgs& args, const Factors& factors, void* stream) {
  const bool vectors =
      fits_vectors(args.count, args.gradient, args.master, args.mean, args.square, args.weight);
  launch(vectors ? adamw_kernel<G, kVector> : adamw_kernel<G, 1>,
         ceil_div(args.count / (vectors ? kVector : 1), kThreads), kThreads, stream, args.gradient,
         args.master, args.mean, args.square, args.weight, args.gradient_scale, args.count,
         factors);
}

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

void adamw_cuda(const AdamWArgs& args, const AdamWSettings& settings, void* stream) {
  const auto t = static_cast<double>(settings.t);
  const Factors factors{static_cast<float>(1 - settings.lr * settings.weight_decay),
                        static_cast<float>(settings.beta1),
                        static_cast<float>(1 - settings.beta1),
                        static_cast<float>(settings.beta2),
                        static_cast<float>(1 - settings.beta2),
                        static_cast<float>(settings.lr / (1 - std::pow(settings.beta1, t))),
                        static_cast<float>(1 / std::sqrt(1 - std::pow(settings.beta2, t))),
                        static_cast<float>(settings.eps)};
  (args.gradient_is_bf16 ? run<__nv_bfloat16> : run<float>)(args, factors, stream);
}

void stochastic_round_cuda(const StochasticRoundArgs& args, void* stream) {
  launch(round_kernel, ceil_div(args.count, kThreads), kThreads, stream, args.in, args.out,
         args.count, args.key, args.first);
}

}  // namespace moe::kernels
