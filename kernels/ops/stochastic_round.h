#pragma once
// Stochastic rounding of f32 to bf16: up or down at random, so that the mean of what comes out is
// what went in. With l <= x <= u the neighbours of x in bf16:
//
//   out = u with probability (x - l) / (u - l), else l        =>  E[out] = x, exactly
//
// An average that lives in bf16 needs it: a change below half a spacing (0.2 to 0.4 % of the value)
// is lost to nearest rounding every time, here it is made now and then (Gupta et al. 2015). What
// bf16 can hold stays as it is, zero too. Numbers above bf16's largest become that; infinities
// stay; NaN stays NaN.
//
// The random numbers are a hash of (key, index of the element), nothing else: the same whatever the
// device, the threads, the pieces a tensor is rounded in, or what was rounded before.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// in [N] f32, out [N] bf16, both contiguous; element i is number first + i of its tensor. `key`:
// what rounding_key() gives.
void stochastic_round(const at::Tensor& in, const at::Tensor& out, uint64_t key, int64_t first);

// Plain memory: in [count], out [count] the bits of bf16.
struct StochasticRoundArgs {
  const float* in;
  uint16_t* out;
  int64_t count;
  uint64_t key;
  int64_t first;
};
void stochastic_round_cpu(const StochasticRoundArgs& args);
void stochastic_round_cuda(const StochasticRoundArgs& args, void* stream);

// ------------------------------------------------------------------------------------ the integers
// They decide every number, in one form for the CPU and for CUDA, so that both round alike. Bits go
// in and out, so that C++17 (the CUDA side) can read it.

// The key of step `step` of a stream (one tensor's): splitmix64's finaliser.
constexpr uint64_t rounding_key(uint64_t stream, uint64_t step) {
  uint64_t mixed = stream + step * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 31);
}

// Wellons' lowbias32 in its better form (prospector, 2018): a permutation of 32 bits in which each
// bit of the input changes each of the output in half of the cases, to 0.02 %.
constexpr uint32_t mix_bits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadU;
  x = (x ^ (x >> 15)) * 0xd35a2d97U;
  return x ^ (x >> 15);
}

// The random number of an element, 0..65535. `low` and `high` are the halves of its index, `key` is
// the step's; 32 bits wide because vectors of those are what CPUs and GPUs multiply.
constexpr uint32_t rounding_draw(uint64_t key, uint32_t low, uint32_t high) {
  const auto key_low = static_cast<uint32_t>(key), key_high = static_cast<uint32_t>(key >> 32);
  return mix_bits(mix_bits(low ^ key_low) ^ (key_high + high * 0x9e3779b9U)) >> 16;
}

// f32 bits -> bf16 bits. The 16 bits that fall away, added to a number that is uniform over 16
// bits, carry with exactly their share of a bf16 spacing: magnitudes are ordered like their bits.
constexpr uint16_t round_bits(uint32_t bits, uint32_t draw) {
  constexpr uint32_t kInfinite = 0x7f800000U, kLargest = 0x7f7f0000U, kSign = 0x80000000U;
  const uint32_t magnitude = bits & ~kSign;
  uint32_t rounded = magnitude + draw;
  rounded = rounded < kInfinite ? rounded : kLargest;        // what is finite stays so
  rounded = magnitude < kInfinite ? rounded : magnitude;     // infinity
  rounded = magnitude <= kInfinite ? rounded : 0x7fc00000U;  // no number
  return static_cast<uint16_t>((rounded | (bits & kSign)) >> 16);
}

}  // namespace moe::kernels
