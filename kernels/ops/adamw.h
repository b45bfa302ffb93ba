#pragma once
// Optimizer updates: AdamW in one pass, and stochastic rounding of its moments to bf16.
//
// AdamW (Loshchilov and Hutter 2019) with g = gradient * gradient_scale, for the t-th update:
//
//   master -= lr * weight_decay * master
//   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
//   master -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   weight = master, rounded to nearest
//
// Equals torch.optim.AdamW. LibTorch's fused kernel requires all tensors to have one dtype.
//
// Stochastic rounding rounds x up or down at random so that the mean of the result is x. With the
// bf16 neighbours l <= x <= u:
//
//   out = u with probability (x - l) / (u - l), else l        =>  E[out] = x, exactly
//
// Rounding to nearest would lose every change of a moving average below half a spacing, which is
// 0.2 to 0.4 % of the value (Gupta et al. 2015). Values that bf16 represents do not change, nor do
// infinities and NaN. Larger finite values become the largest finite bf16.

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

struct AdamWSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t t = 1;  // number of this update, from 1
};

// Updates one parameter in place. gradient f32 or bf16; master, mean, square f32; weight bf16, or
// undefined if the master copy is the weight; equal shapes, contiguous. gradient_scale: one f32 on
// the same device, or undefined for 1. On a CPU all tensors are f32, and `gradient` is scaled in
// place.
// NOLINTNEXTLINE(readability-identifier-naming): LibTorch's suffix of functions in place
void adamw_(const at::Tensor& gradient, const at::Tensor& master, const at::Tensor& mean,
            const at::Tensor& square, const at::Tensor& weight, const AdamWSettings& settings,
            const at::Tensor& gradient_scale);

struct AdamWArgs {
  const void* gradient;  // f32 or bf16
  bool gradient_is_bf16;
  float *master, *mean, *square;
  void* weight;                 // bf16; may be null
  const float* gradient_scale;  // may be null
  int64_t count;
};
void adamw_cuda(const AdamWArgs& args, const AdamWSettings& settings, void* stream);

// Rounds `in` [N] f32 to `out` [N] bf16, both contiguous. Element i is element first + i of its
// tensor. The random numbers are a hash of `key` (rounding_key()) and the element's index: they do
// not depend on device, threads or the split of the tensor.
void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first);

struct StochasticRoundArgs {
  const float* in;  // [count]
  uint16_t* out;    // [count], bits of bf16
  int64_t count;
  uint64_t key;
  int64_t first;
};
void stochastic_round_cpu(const StochasticRoundArgs& args);
void stochastic_round_cuda(const StochasticRoundArgs& args, void* stream);

// Integer arithmetic of stochastic rounding, in C++17, shared by the CPU and CUDA kernels so that
// both round alike.

// Returns the key of step `step` of a stream (one per tensor): the finaliser of splitmix64.
constexpr uint64_t rounding_key(uint64_t stream, uint64_t step) {
  uint64_t mixed = stream + step * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 31);
}

// Applies the improved lowbias32 of Wellons (prospector, 2018), a permutation of 32 bits in which
// each input bit flips each output bit in half of the cases, to 0.02 %.
constexpr uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadU;
  x = (x ^ (x >> 15)) * 0xd35a2d97U;
  return x ^ (x >> 15);
}

// Returns the random number 0..65535 of the element whose index has the halves `low` and `high`.
// Uses 32-bit products, which CPUs compute in vectors.
constexpr uint32_t rounding_draw(uint64_t key, uint32_t low, uint32_t high) {
  const auto key_low = static_cast<uint32_t>(key), key_high = static_cast<uint32_t>(key >> 32);
  return mix_bits(mix_bits(low ^ key_low) ^ (key_high + high * 0x9e3779b9U)) >> 16;
}

// Returns bf16 bits for f32 bits. Adding a uniform 16-bit number to the 16 bits that are cut off
// carries with the probability (x - l) / (u - l).
constexpr uint16_t round_bits(uint32_t bits, uint32_t draw) {
  constexpr uint32_t kInfinite = 0x7f800000U, kLargest = 0x7f7f0000U, kSign = 0x80000000U;
  const uint32_t magnitude = bits & ~kSign;
  uint32_t rounded = magnitude + draw;
  rounded = rounded < kInfinite ? rounded : kLargest;        // finite values stay finite
  rounded = magnitude < kInfinite ? rounded : magnitude;     // infinity
  rounded = magnitude <= kInfinite ? rounded : 0x7fc00000U;  // NaN
  return static_cast<uint16_t>((rounded | (bits & kSign)) >> 16);
}

}  // namespace moe::kernels
