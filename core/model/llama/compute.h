#pragma once
// How a model is computed, whatever it is: precision, and what a forward keeps for its backward.
// Needs no LibTorch.

#include <string>

namespace moe::model {

enum class Precision {
  kF32,
  kTf32,  // f32, but for products on CUDA GPUs, which take operands with 10 bits of mantissa
  kBf16,  // products and what they keep for backward; weights (the masters), their gradients, the
          // residual stream, norms, router, softmax and losses stay f32 (kernels/ops/linear.h)
};

// What is computed again in backward (core/model/llama/recompute.h).
enum class Recompute { kNone, kFeedForward, kLayer };

struct ComputeOptions {
  Precision precision = Precision::kF32;
  Recompute recompute = Recompute::kNone;
};

Precision parse_precision(const std::string& text);  // UserError lists what is known
Recompute parse_recompute(const std::string& text);
const char* to_string(Precision precision);
const char* to_string(Recompute recompute);

}  // namespace moe::model
