#pragma once
// Settings from flags: precision, activation checkpointing, low-rank adapters, and the choice
// of MoE layers. Needs no LibTorch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe::model {

enum class Precision {
  kF32,
  kTf32,  // f32; products on CUDA GPUs take operands with 10 bits of mantissa
  kBf16,  // products and their saved activations; master weights, gradients, the residual stream,
          // norms, router, softmax and losses stay f32 (kernels/ops/linear.h)
};

// Part of a layer that is recomputed in backward (core/model/llama/recompute.h).
enum class Recompute { kNone, kFeedForward, kLayer };

struct ComputeOptions {
  Precision precision = Precision::kF32;
  Recompute recompute = Recompute::kNone;
};

// Parse the value of a flag. Throw UserError that lists the known values for other texts.
Precision parse_precision(const std::string& text);
Recompute parse_recompute(const std::string& text);
// Throws UserError for TF32 without a GPU.
void check_precision(Precision precision, bool on_cuda);
// Returns `requested` after check_precision(); by default bf16 on a GPU and f32 on a CPU.
Precision inference_precision(const std::optional<Precision>& requested, bool on_cuda);
const char* to_string(Precision precision);
const char* to_string(Recompute recompute);

// Low-rank adapters (Hu et al. 2021, "LoRA", section 4.1). W is frozen, A and B are trained:
//
//   y = W x + (alpha / r) B A x,    A [r, D] random, B [N, r] initially zero.
//
// A fused weight has one adapter: q, k and v share A, as do gate and up. Every expert has its own.
struct LoraSettings {
  int64_t rank = 0;                                    // r; 0: no adapters
  double alpha = 0;                                    // 0: alpha = r
  std::vector<std::string> on = {"attention", "ffn"};  // ffn: dense and experts

  bool is_on(const std::string& part) const;
  double scale() const;
};

// Throws UserError naming the flag.
void check_lora(const LoraSettings& settings);

// Parses the value of --layers: even ("every alternate layer" of the papers), odd, all, or a list
// such as 0,3,5 or 0-3,7. Returns at least one layer, ascending. Throws UserError if the text is
// invalid, or names no layer, a layer twice, or a layer that does not exist.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers);

}  // namespace moe::model
