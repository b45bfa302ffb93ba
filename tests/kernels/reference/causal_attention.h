#pragma once
// Causal attention as plain loops in double, all groups of one sequence. qkv [length, (H + 2 G) A];
// cosine, sine [length, A]; out [length, H A].

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/causal_attention.h"

namespace moe::test {

using kernels::AttentionHeads;

inline std::vector<double> rotated(const double* x, const double* c, const double* s,
                                   int64_t width) {
  const int64_t half = width / 2;
  std::vector<double> y(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    const double other = i < half ? -x[i + half] : x[i - half];
    y[static_cast<size_t>(i)] = x[i] * c[i] + other * s[i];
  }
  return y;
}

inline void causal_attention_reference(const double* qkv, const double* cosine, const double* sine,
                                       int64_t length, const AttentionHeads& heads, double* out) {
  const int64_t width = heads.width, row = heads.row();
  for (int64_t head = 0; head < heads.heads; ++head) {
    const int64_t group = head / (heads.heads / heads.kv_heads);
    const double* keys = qkv + (heads.heads + group) * width;
    const double* values = keys + heads.kv_heads * width;
    for (int64_t i = 0; i < length; ++i) {
      const auto q =
          rotated(qkv + i * row + head * width, cosine + i * width, sine + i * width, width);
      std::vector<double> weight;
      for (int64_t j = 0; j <= i; ++j) {
        const auto k = rotated(keys + j * row, cosine + j * width, sine + j * width, width);
        double score = 0;
        for (size_t d = 0; d < q.size(); ++d) {
          score += q[d] * k[d];
        }
        weight.push_back(score / std::sqrt(static_cast<double>(width)));
      }
      const double most = *std::max_element(weight.begin(), weight.end());
      double sum = 0;
      for (double& one : weight) {
        sum += one = std::exp(one - most);
      }
      for (int64_t d = 0; d < width; ++d) {
        double y = 0;
        for (int64_t j = 0; j <= i; ++j) {
          y += weight[static_cast<size_t>(j)] / sum * values[j * row + d];
        }
        out[i * heads.heads * width + head * width + d] = y;
      }
    }
  }
}

}  // namespace moe::test
