#pragma once
// The expert of a MoE layer that every token goes to, beside those that the router chooses
// (Qwen2-MoE). No router decides about it and no rank owns it: it is whole on every process, as a
// dense feed-forward is. T tokens, D model width, Fs width of the shared one.

#include <ATen/ATen.h>

#include "core/model/llama/adapter.h"
#include "kernels/ops/weight.h"

namespace moe::model {

struct SharedExpert {
  at::Tensor gate;          // [1, D] f32, undefined in a layer without a shared expert
  kernels::Weight gate_up;  // [1, 2Fs, D], gate rows first
  kernels::Weight down;     // [1, D, Fs]
  Adapter gate_up_adapter = {}, down_adapter = {};

  bool is_there() const { return gate.defined(); }

  // sigmoid(x gate^T) * SwiGLU(x), x [T, D] -> [T, D] f32 (f64 of f64). The sigmoid is in f32
  // whatever x is, as what a router decides. Differentiable in x and all weights.
  at::Tensor run(const at::Tensor& x) const;
};

}  // namespace moe::model
