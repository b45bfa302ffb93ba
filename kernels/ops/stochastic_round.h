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
// rounding_key of stochastic_round_bits.h.
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

}  // namespace moe::kernels
