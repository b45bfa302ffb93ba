// The reference of router.h: plain loops. Tests hold the kernels to it.

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ops/order_key.h"
#include "kernels/ops/router.h"

namespace moe::kernels {

namespace {

void scores_of(const float* logits, float* scores, int64_t experts, bool is_relu) {
  double most = -INFINITY, sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    most = std::max<double>(most, logits[e]);
  }
  for (int64_t e = 0; e < experts; ++e) {
    sum += std::exp(logits[e] - most);
  }
  for (int64_t e = 0; e < experts; ++e) {
    scores[e] =
        is_relu ? std::max(logits[e], 0.0F) : static_cast<float>(std::exp(logits[e] - most) / sum);
  }
}

// The experts first .. first + count - 1, best first.
std::vector<int32_t> best_first(const float* logits, int64_t first, int64_t count) {
  std::vector<int32_t> experts(static_cast<size_t>(count));
  std::iota(experts.begin(), experts.end(), static_cast<int32_t>(first));
  std::stable_sort(experts.begin(), experts.end(), [&](int32_t a, int32_t b) {
    return order_key(std::bit_cast<uint32_t>(logits[a])) >
           order_key(std::bit_cast<uint32_t>(logits[b]));
  });
  return experts;
}

}  // namespace

void router_logits_reference(const float* x, const float* weight, float* logits, int64_t tokens,
                             int64_t width, int64_t experts) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (int64_t d = 0; d < width; ++d) {
        sum += static_cast<double>(x[t * width + d]) * weight[e * width + d];
      }
      logits[t * experts + e] = static_cast<float>(sum);
    }
  }
}

void router_choices_reference(const float* logits, const int32_t* home, const RouterShape& shape,
                              const RouterChoices& to) {
  const int64_t experts = shape.experts, local = experts / shape.ranks;
  std::fill_n(to.requested, shape.choices * experts * shape.ranks, 0);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* row = logits + t * experts;
    scores_of(row, to.scores + t * experts, experts, shape.is_relu);
    const auto ranked = best_first(row, 0, experts);
    const bool is_padding = home[t] == shape.ranks;
    for (int64_t c = 0; c < shape.choices; ++c) {
      const int32_t expert = ranked[static_cast<size_t>(c)];
      to.choice[t * shape.choices + c] = expert;
      if (!is_padding) {
        ++to.requested[(c * experts + expert) * shape.ranks + home[t]];
      }
    }
    to.at_home[t] = is_padding ? -1 : best_first(row, home[t] * local, local).front();
  }
}

}  // namespace moe::kernels
