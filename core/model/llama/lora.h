#pragma once
// Low-rank adapters (Hu et al. 2021, "LoRA", section 4.1): beside a frozen weight W a product of
// two thin matrices is trained,
//
//   y = W x + (alpha / r) B A x,    A [r, D] random, B [N, r] zero at first.
//
// Fused weights have one adapter: q, k and v share A, so do gate and up. Every expert has its own.

#include <cstdint>
#include <string>
#include <vector>

namespace moe::model {

struct LoraSettings {
  int64_t rank = 0;                                    // r; 0 = no adapters
  double alpha = 0;                                    // 0 = r, a scale of one
  std::vector<std::string> on = {"attention", "ffn"};  // either or both; ffn: dense and experts

  bool is_on(const std::string& part) const;
  double scale() const;
};

// UserError names the flag: a rank or alpha that cannot be, an unknown part, alpha or parts without
// a rank.
void check_lora(const LoraSettings& settings);

}  // namespace moe::model
