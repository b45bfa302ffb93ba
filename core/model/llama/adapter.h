#pragma once
// The tensors of an adapter (core/model/llama/lora.h) and products with them.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/weight.h"

namespace moe::model {

// Of a weight [N, D], or of one for each expert [E, N, D]. Undefined tensors: no adapter.
struct Adapter {
  at::Tensor a;  // [r, D] or [E, r, D] f32
  at::Tensor b;  // [N, r] or [E, N, r] f32
  double scale = 1;

  bool defined() const { return a.defined(); }
};

// The experts that a weight [E/G, N, D] holds: from `first` on, of E `experts`. By default all.
struct ExpertRange {
  int64_t first = 0, experts = 0;
};

// An adapter of `weight`: a ~ U(-1/sqrt(D), 1/sqrt(D)) (peft's), b = 0. The values are LibTorch's
// for `seed`, on any device, and an expert has the same ones whichever process holds it.
Adapter make_adapter(const at::Tensor& weight, int64_t rank, double scale, uint64_t seed,
                     const ExpertRange& range = {});

// weight + scale b a, in the weight's shape.
at::Tensor merged_weight(const at::Tensor& weight, const Adapter& adapter);

// x weight^T (+ bias) plus the adapter's product; x [T, D] -> [T, N].
at::Tensor adapted_linear(const at::Tensor& x, const kernels::Weight& weight,
                          const at::Tensor& bias, const Adapter& adapter);

// SwiGLU of every expert over its rows (kernels/ops/grouped_swiglu.h), with the adapters' products
// added.
// Weights with an adapter are one tensor.
at::Tensor adapted_swiglu(const at::Tensor& rows, const kernels::Weight& gate_up,
                          const kernels::Weight& down, const Adapter& gate_up_adapter,
                          const Adapter& down_adapter, const std::vector<int64_t>& rows_per_expert);
// The same where the counts stay on the device: segments end at `ends` [E] i32
// (kernels/ops/grouped_linear.h).
at::Tensor adapted_swiglu(const at::Tensor& rows, const at::Tensor& gate_up, const at::Tensor& down,
                          const Adapter& gate_up_adapter, const Adapter& down_adapter,
                          const at::Tensor& ends);

}  // namespace moe::model
