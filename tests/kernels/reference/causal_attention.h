#pragma once
// Causal attention as operations on tensors in double: the formula, whose gradient is autograd's,
// and the same with operands of products rounded to bf16 where kernels/cpu/causal_attention.h says,
// with its gradients. S positions, H heads, G key/value heads, A head width.

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "kernels/ops/causal_attention.h"

namespace moe::test {

using kernels::AttentionHeads;
using kernels::Rotation;

inline Rotation random_rotation(int64_t positions, int64_t width) {
  const at::Tensor half = at::outer(at::arange(positions), at::rand({width / 2}));
  const at::Tensor both = at::cat({half, half}, 1);
  return {both.cos(), both.sin()};
}

// x [S, heads, A]; direction -1: the transpose, which rotates a gradient back.
inline at::Tensor rotated(const at::Tensor& x, const Rotation& rotation, int direction = 1) {
  const int64_t length = x.size(0), half = x.size(2) / 2;
  const auto angles = [&](const at::Tensor& table) {
    return table.narrow(0, 0, length).to(at::kDouble).unsqueeze(1);
  };
  const at::Tensor other = at::cat({x.narrow(2, half, half).neg(), x.narrow(2, 0, half)}, 2);
  return x * angles(rotation.cosine) + other * angles(rotation.sine) * direction;
}

// Rotated queries, rotated keys and values of one sequence, [H, S, A].
struct AttentionParts {
  at::Tensor query, key, value;

  AttentionParts(const at::Tensor& qkv, const AttentionHeads& heads, const Rotation& rotation) {
    const int64_t h = heads.heads, g = heads.kv_heads;
    const at::Tensor rows = qkv.view({qkv.size(0), h + 2 * g, heads.width});
    const auto per_head = [&](const at::Tensor& x) {
      return x.repeat_interleave(h / x.size(1), 1).transpose(0, 1);
    };
    query = per_head(rotated(rows.narrow(1, 0, h), rotation));
    key = per_head(rotated(rows.narrow(1, h, g), rotation));
    value = per_head(rows.narrow(1, h + g, g));
  }
};

// [H, S, S]: minus infinity where a key is after its query.
inline at::Tensor masked_scores(const at::Tensor& query, const at::Tensor& key) {
  const int64_t length = query.size(1);
  const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
  return query.matmul(key.transpose(1, 2)).masked_fill(later, -INFINITY);
}

// Returns [T, H A] of packed sequences, qkv [T, (H + 2 G) A] f64.
inline at::Tensor attention_formula(const at::Tensor& qkv, const AttentionHeads& heads,
                                    const std::vector<int64_t>& lengths, const Rotation& rotation) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const AttentionParts one(qkv.narrow(0, first, length), heads, rotation);
    const at::Tensor scores = masked_scores(one.query, one.key) / std::sqrt(heads.width);
    parts.push_back(at::softmax(scores, 2).matmul(one.value).transpose(0, 1).flatten(1));
    first += length;
  }
  return at::cat(parts, 0);
}

// One sequence with products of bf16.
class RoundedAttention {
 public:
  RoundedAttention(const at::Tensor& qkv, const AttentionHeads& heads, const Rotation& rotation)
      : heads_(heads), rotation_(rotation), parts_(qkv, heads, rotation) {
    parts_.query = round(parts_.query * scale());
    parts_.key = round(parts_.key);
    scores_ = masked_scores(parts_.query, parts_.key);
  }

  // Returns y [S, H A] and the logarithm of the softmax's sum [S, H].
  std::pair<at::Tensor, at::Tensor> forward() const {
    const at::Tensor most = scores_.amax(2, /*keepdim=*/true), e = at::exp(scores_ - most);
    const at::Tensor sum = e.sum(2, /*keepdim=*/true);
    return {(round(e).matmul(parts_.value) / sum).transpose(0, 1).flatten(1),
            (most + sum.log()).squeeze(2).t()};
  }

  // Returns the gradient of qkv by what forward() returned and the gradient of y.
  at::Tensor backward(const at::Tensor& out, const at::Tensor& log_sum,
                      const at::Tensor& grad_out) const {
    const auto per_head = [&](const at::Tensor& x) {
      return x.view({x.size(0), heads_.heads, heads_.width}).transpose(0, 1);
    };
    const at::Tensor y = per_head(out), dy = per_head(grad_out);
    const at::Tensor p = at::exp(scores_ - log_sum.t().unsqueeze(2));
    const at::Tensor dp = dy.matmul(parts_.value.transpose(1, 2));
    const at::Tensor slope = round(p * (dp - (y * dy).sum(2, /*keepdim=*/true)));
    const at::Tensor query = slope.matmul(parts_.key).transpose(0, 1) * scale();
    const at::Tensor key = sum_groups(slope.transpose(1, 2).matmul(parts_.query));
    return at::cat({rotated(query, rotation_, -1), rotated(key, rotation_, -1),
                    sum_groups(round(p).transpose(1, 2).matmul(dy))},
                   1)
        .flatten(1);
  }

 private:
  static at::Tensor round(const at::Tensor& x) {
    return x.to(at::kFloat).to(at::kBFloat16).to(at::kDouble);
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(heads_.width)); }
  at::Tensor sum_groups(const at::Tensor& x) const {  // [H, S, A] -> [S, G, A]
    return x.view({heads_.kv_heads, -1, x.size(1), heads_.width}).sum(1).transpose(0, 1);
  }

  AttentionHeads heads_;
  Rotation rotation_;
  AttentionParts parts_;
  at::Tensor scores_;
};

}  // namespace moe::test
