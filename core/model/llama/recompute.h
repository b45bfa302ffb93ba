#pragma once
// Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"): a
// segment of the model saves only its input, and backward recomputes the rest, with equal results.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace moe::model {

// Computes tensors, which may be undefined, from x and captured weights. Called in forward and
// again in backward, and must return equal results. Must not capture local variables by reference.
using Segment = std::function<std::vector<at::Tensor>(const at::Tensor& x)>;

// Returns segment(x), differentiable in x and in every leaf that the segment uses.
std::vector<at::Tensor> recomputed(const Segment& segment, const at::Tensor& x);

}  // namespace moe::model
