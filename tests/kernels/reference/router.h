#pragma once
// A router's logits and choices as plain loops. x [tokens, width], weight [experts, width],
// logits [tokens, experts].

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::test {

using kernels::order_key;
using kernels::RouterChoicesArgs;

inline void scores_of(const float* logits, float* scores, int64_t experts) {
  double most = -INFINITY, sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    most = std::max<double>(most, logits[e]);
  }
  for (int64_t e = 0; e < experts; ++e) {
    sum += std::exp(logits[e] - most);
  }
  for (int64_t e = 0; e < experts; ++e) {
    scores[e] = static_cast<float>(std::exp(logits[e] - most) / sum);
  }
}

// The experts first .. first + count - 1, best first.
inline std::vector<int32_t> best_first(const float* logits, int64_t first, int64_t count) {
  std::vector<int32_t> experts(static_cast<size_t>(count));
  std::iota(experts.begin(), experts.end(), static_cast<int32_t>(first));
  std::stable_sort(experts.begin(), experts.end(), [&](int32_t a, int32_t b) {
    return order_key(std::bit_cast<uint32_t>(logits[a])) >
           order_key(std::bit_cast<uint32_t>(logits[b]));
  });
  return experts;
}

inline void router_logits_reference(const kernels::RouterLogitsArgs& args) {  // of f32
  const auto* x = static_cast<const float*>(args.x);
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t e = 0; e < args.experts; ++e) {
      double sum = 0;
      for (int64_t d = 0; d < args.width; ++d) {
        sum += static_cast<double>(x[t * args.width + d]) * args.weight[e * args.width + d];
      }
      args.logits[t * args.experts + e] = static_cast<float>(sum);
    }
  }
}

inline void router_logits_backward_reference(
    const kernels::RouterLogitsBackwardArgs& args) {  // of f32
  const auto* x = static_cast<const float*>(args.x);
  auto* grad_x = static_cast<float*>(args.grad_x);
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t d = 0; d < args.width; ++d) {
      double sum = 0;
      for (int64_t e = 0; e < args.experts; ++e) {
        sum +=
            static_cast<double>(args.grad[t * args.experts + e]) * args.weight[e * args.width + d];
      }
      grad_x[t * args.width + d] = static_cast<float>(sum);
    }
  }
  for (int64_t e = 0; e < args.experts; ++e) {
    for (int64_t d = 0; d < args.width; ++d) {
      double sum = 0;
      for (int64_t t = 0; t < args.tokens; ++t) {
        sum += static_cast<double>(args.grad[t * args.experts + e]) * x[t * args.width + d];
      }
      args.grad_weight[e * args.width + d] = static_cast<float>(sum);
    }
  }
}

inline void router_choices_reference(const RouterChoicesArgs& args) {
  const kernels::RouterShape& shape = args.shape;
  const int64_t experts = shape.experts, local = experts / shape.ranks;
  std::fill_n(args.requested, shape.choices * experts * shape.ranks, 0);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* row = args.logits + t * experts;
    const int32_t home = args.home[t];
    scores_of(row, args.scores + t * experts, experts);
    const auto ranked = best_first(row, 0, experts);
    const bool is_padding = home == shape.ranks;
    for (int64_t c = 0; c < shape.choices; ++c) {
      const int32_t expert = ranked[static_cast<size_t>(c)];
      args.choice[t * shape.choices + c] = expert;
      if (!is_padding) {
        ++args.requested[(c * experts + expert) * shape.ranks + home];
      }
    }
    args.at_home[t] = is_padding ? -1 : best_first(row, home * local, local).front();
  }
}

}  // namespace moe::test
