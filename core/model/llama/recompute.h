#pragma once
// Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"): a
// segment of the model keeps its input alone; what its backward needs is computed again when it is
// reached. Time for memory, the same numbers.

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace moe::model {

// Tensors from one tensor and weights that it holds itself; some may be undefined. Called once
// forward, and once more in backward, where it must give the same again. It outlives the call:
// nothing of a caller's frame may be captured by reference.
using Segment = std::function<std::vector<at::Tensor>(const at::Tensor& x)>;

// segment(x), differentiable in x and in every leaf that the segment uses.
std::vector<at::Tensor> recomputed(const Segment& segment, const at::Tensor& x);

}  // namespace moe::model
