// The reference of row_gates.h: plain loops in double. Tests hold the kernels to it.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/row_gates.h"

namespace moe::kernels {

namespace {

template <typename Number>
std::vector<double> softmax(const Number* logits, int64_t experts) {
  const double most = *std::max_element(logits, logits + experts);
  std::vector<double> shares;
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    shares.push_back(std::exp(logits[e] - most));
    sum += shares.back();
  }
  for (double& share : shares) {
    share /= sum;
  }
  return shares;
}

}  // namespace

template <typename Number>
void row_gates_reference(const GateShape& shape, const Number* logits, const int32_t* expert,
                         const int32_t* times, Number* weight) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const Number* row = logits + t * shape.experts;
    const auto shares = softmax(row, shape.experts);
    double most = -INFINITY, sum = 0;
    for (int64_t cell = t * shape.columns; cell < (t + 1) * shape.columns; ++cell) {
      most = expert[cell] >= 0 ? std::max<double>(most, row[expert[cell]]) : most;
    }
    std::vector<double> mass;
    for (int64_t cell = t * shape.columns; cell < (t + 1) * shape.columns; ++cell) {
      const double e = expert[cell] >= 0 ? times[cell] * std::exp(row[expert[cell]] - most) : 0;
      mass.push_back(e);
      sum += e;
    }
    for (int64_t c = 0; c < shape.columns; ++c) {
      const int64_t cell = t * shape.columns + c;
      double w = 0;
      if (expert[cell] >= 0) {
        switch (shape.rule) {
          case GateRule::kSelected:
            w = mass[static_cast<size_t>(c)] / sum;
            break;
          case GateRule::kProbability:
            w = times[cell] * shares[static_cast<size_t>(expert[cell])];
            break;
          case GateRule::kPositive:
            w = times[cell] * std::max<double>(0, row[expert[cell]]);
            break;
        }
      }
      weight[cell] = static_cast<Number>(w);
    }
  }
}

template <typename Number>
void row_gates_backward_reference(const GateShape& shape, const Number* logits,
                                  const int32_t* expert, const int32_t* times, const Number* weight,
                                  const Number* grad_weight, Number* grad_logits) {
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const Number* row = logits + t * shape.experts;
    const auto count = static_cast<size_t>(shape.experts);
    std::vector<double> direct(count), own(count), positive(count);
    double sum = 0;
    for (int64_t cell = t * shape.columns; cell < (t + 1) * shape.columns; ++cell) {
      if (expert[cell] >= 0) {
        const auto e = static_cast<size_t>(expert[cell]);
        const double pulled = static_cast<double>(weight[cell]) * grad_weight[cell];
        direct[e] += pulled;
        own[e] += weight[cell];
        positive[e] += row[e] > 0 ? static_cast<double>(times[cell]) * grad_weight[cell] : 0;
        sum += pulled;
      }
    }
    const bool through_all = shape.straight_through || shape.rule == GateRule::kProbability;
    const auto base = through_all ? softmax(row, shape.experts) : own;
    for (int64_t e = 0; e < shape.experts; ++e) {
      const auto i = static_cast<size_t>(e);
      const double grad =
          shape.rule == GateRule::kPositive ? positive[i] : direct[i] - base[i] * sum;
      grad_logits[t * shape.experts + e] = static_cast<Number>(grad);
    }
  }
}

#define MOE_INSTANTIATE(Number)                                                               \
  template void row_gates_reference(const GateShape&, const Number*, const int32_t*,          \
                                    const int32_t*, Number*);                                 \
  template void row_gates_backward_reference(const GateShape&, const Number*, const int32_t*, \
                                             const int32_t*, const Number*, const Number*,    \
                                             Number*)
MOE_INSTANTIATE(float);
MOE_INSTANTIATE(double);

}  // namespace moe::kernels
