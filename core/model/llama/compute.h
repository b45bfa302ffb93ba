#pragma once
// How a model is computed, whatever it is: precision, and what a forward keeps for its backward.
// Needs no LibTorch.

#include <optional>
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
// UserError: TF32 without a GPU.
void check_precision(Precision precision, bool on_cuda);
// Of a command that runs a model and does not train it: what was asked for, checked, or bf16 on a
// GPU and f32 on a CPU.
Precision inference_precision(const std::optional<Precision>& asked, bool on_cuda);
Recompute parse_recompute(const std::string& text);
const char* to_string(Precision precision);
const char* to_string(Recompute recompute);

}  // namespace moe::model
