#pragma once
// Causal attention as plain loops in double, all groups of one sequence. qkv [length, (H + 2 G) A];
// cosine, sine [length, A]; out [length, H A]. And the same where products take bf16: rounded where
// kernels/cpu/causal_attention.h says, with its gradients.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"
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

inline double to_bf16(double value) { return kernels::rounded_to_bf16(static_cast<float>(value)); }

// One head of it: rotated and rounded rows, [length][A].
struct RoundedHead {
  using Rows = std::vector<std::vector<double>>;
  Rows query, key, value;  // the query scaled

  RoundedHead(const double* qkv, const double* cosine, const double* sine, int64_t length,
              const AttentionHeads& heads, int64_t head) {
    const int64_t width = heads.width, group = head / (heads.heads / heads.kv_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    for (int64_t t = 0; t < length; ++t) {
      const double *row = qkv + t * heads.row(), *c = cosine + t * width, *s = sine + t * width;
      query.push_back(rotated(row + head * width, c, s, width));
      key.push_back(rotated(row + (heads.heads + group) * width, c, s, width));
      const double* values = row + (heads.heads + heads.kv_heads + group) * width;
      value.emplace_back(values, values + width);
      for (size_t d = 0; d < query.back().size(); ++d) {
        query.back()[d] = to_bf16(query.back()[d] * scale);
        key.back()[d] = to_bf16(key.back()[d]);
      }
    }
  }

  static double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t d = 0; d < a.size(); ++d) {
      sum += a[d] * b[d];
    }
    return sum;
  }
  // Of row i with the keys that it sees.
  std::vector<double> scores(size_t i) const {
    std::vector<double> s;
    for (size_t j = 0; j <= i; ++j) {
      s.push_back(dot(query[i], key[j]));
    }
    return s;
  }
};

// y and the logarithm of the softmax's sum, log_sum [length, H].
inline void causal_attention_bf16_reference(const double* qkv, const double* cosine,
                                            const double* sine, int64_t length,
                                            const AttentionHeads& heads, double* out,
                                            double* log_sum) {
  for (int64_t head = 0; head < heads.heads; ++head) {
    const RoundedHead one(qkv, cosine, sine, length, heads, head);
    for (size_t i = 0; i < one.query.size(); ++i) {
      const auto scores = one.scores(i);
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      std::vector<double> y(one.value[i].size());
      for (size_t j = 0; j <= i; ++j) {
        const double e = std::exp(scores[j] - most);
        sum += e;
        for (size_t d = 0; d < y.size(); ++d) {
          y[d] += to_bf16(e) * one.value[j][d];
        }
      }
      const int64_t at = static_cast<int64_t>(i) * heads.heads + head;
      log_sum[at] = most + std::log(sum);
      for (size_t d = 0; d < y.size(); ++d) {
        out[at * heads.width + static_cast<int64_t>(d)] = y[d] / sum;
      }
    }
  }
}

// The gradients of the rotated rows by a head's out and grad_out, [length][A].
struct RotatedGradients {
  RoundedHead::Rows query, key, value;

  RotatedGradients(const RoundedHead& head, const RoundedHead::Rows& out,
                   const RoundedHead::Rows& grad_out, const std::vector<double>& log_sum)
      : query(out.size(), std::vector<double>(out[0].size())), key(query), value(query) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto scores = head.scores(i);
      const double delta = RoundedHead::dot(out[i], grad_out[i]);
      for (size_t j = 0; j <= i; ++j) {
        const double p = std::exp(scores[j] - log_sum[i]);
        const double dp = RoundedHead::dot(grad_out[i], head.value[j]);
        const double slope = to_bf16(p * (dp - delta));
        for (size_t d = 0; d < out[i].size(); ++d) {
          value[j][d] += to_bf16(p) * grad_out[i][d];
          query[i][d] += slope * head.key[j][d];
          key[j][d] += slope * head.query[i][d];
        }
      }
    }
  }
};

// grad_qkv [length, (H + 2 G) A] of out and grad_out [length, H A], log_sum [length, H].
inline void causal_attention_bf16_backward_reference(const double* qkv, const double* cosine,
                                                     const double* sine, int64_t length,
                                                     const AttentionHeads& heads, const double* out,
                                                     const double* log_sum, const double* grad_out,
                                                     double* grad_qkv) {
  const int64_t width = heads.width, half = width / 2;
  std::fill_n(grad_qkv, length * heads.row(), 0.0);
  for (int64_t head = 0; head < heads.heads; ++head) {
    const int64_t group = head / (heads.heads / heads.kv_heads);
    RoundedHead::Rows y, dy;
    std::vector<double> sums;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t at = t * heads.heads + head;
      y.emplace_back(out + at * width, out + (at + 1) * width);
      dy.emplace_back(grad_out + at * width, grad_out + (at + 1) * width);
      sums.push_back(log_sum[at]);
    }
    const RoundedHead one(qkv, cosine, sine, length, heads, head);
    const RotatedGradients gradients(one, y, dy, sums);
    for (int64_t t = 0; t < length; ++t) {
      const double *c = cosine + t * width, *s = sine + t * width;
      const auto add = [&](const std::vector<double>& from, double scale, double* to) {
        for (int64_t i = 0; i < width; ++i) {  // the transpose of rotated()
          const double other = i < half ? from[static_cast<size_t>(i + half)] * s[i + half]
                                        : -from[static_cast<size_t>(i - half)] * s[i - half];
          to[i] += (from[static_cast<size_t>(i)] * c[i] + other) * scale;
        }
      };
      double* row = grad_qkv + t * heads.row();
      const auto at = static_cast<size_t>(t);
      add(gradients.query[at], 1 / std::sqrt(static_cast<double>(width)), row + head * width);
      add(gradients.key[at], 1, row + (heads.heads + group) * width);
      double* values = row + (heads.heads + heads.kv_heads + group) * width;
      for (int64_t i = 0; i < width; ++i) {
        values[i] += gradients.value[at][static_cast<size_t>(i)];
      }
    }
  }
}

}  // namespace moe::test
