#pragma once
// Low-rank adapters (LoRA; formula: core/model/config/compute.h) of weights and of experts.

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/ops/linear.h"

namespace moe::model {

// Adapter of a weight [N, D], or of the weights [E, N, D] of E experts. Undefined: none.
struct Adapter {
  at::Tensor a;  // [r, D] or [E, r, D] f32
  at::Tensor b;  // [N, r] or [E, N, r] f32
  double scale = 1;

  bool defined() const { return a.defined(); }
};

// Experts of a weight [E/G, N, D] of this process: first .. first + E/G - 1 of `experts` = E.
// experts = 0: the weight has all experts.
struct ExpertRange {
  int64_t first = 0, experts = 0;
};

// Returns a new adapter of `weight`: a ~ U(-1/sqrt(D), 1/sqrt(D)) as in peft, b = 0, equal on every
// device and for every number of processes.
Adapter make_adapter(const at::Tensor& weight, int64_t rank, double scale, uint64_t seed,
                     const ExpertRange& range = {});

// Returns weight + scale b a.
at::Tensor merged_weight(const at::Tensor& weight, const Adapter& adapter);

// Returns x weight^T (+ bias) + scale x a^T b^T. x [T, D] -> [T, N].
at::Tensor adapted_linear(const at::Tensor& x, const kernels::Weight& weight,
                          const at::Tensor& bias, const Adapter& adapter);

}  // namespace moe::model
