#pragma once
// The tensors of an adapter (core/model/llama/lora.h) and products with them.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/ops/weight.h"

namespace moe::model {

// Of a weight [N, D], or of one a expert [E, N, D]. Undefined tensors: no adapter.
struct Adapter {
  at::Tensor a;  // [r, D] or [E, r, D] f32
  at::Tensor b;  // [N, r] or [E, N, r] f32
  double scale = 1;

  bool defined() const { return a.defined(); }
};

// Which experts of how many a weight [E/G, N, D] holds. By default it is whole.
struct AdapterShare {
  int64_t first = 0, of = 0;
};

// An adapter of `weight`: a ~ U(-1/sqrt(D), 1/sqrt(D)) (peft's), b = 0. The numbers are LibTorch's
// for `seed`, on any device, and an expert has the same whoever holds it.
Adapter make_adapter(const at::Tensor& weight, int64_t rank, double scale, uint64_t seed,
                     const AdapterShare& share = {});

// weight + scale b a, in the weight's shape.
at::Tensor merged_weight(const at::Tensor& weight, const Adapter& adapter);

// x weight^T (+ bias) and the adapter's share; x [T, D] -> [T, N].
at::Tensor adapted_linear(const at::Tensor& x, const kernels::Weight& weight,
                          const at::Tensor& bias, const Adapter& adapter);

// SwiGLU of every expert over its rows (kernels/ops/grouped_swiglu.h), with the adapters' shares.
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
