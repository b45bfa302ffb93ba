#pragma once
// permute, unpermute with its gradients, and segments of rows, as plain loops whose sums are in
// double. Rows, weights and results are of type Number, whatever the arguments' dtype says.

#include <algorithm>
#include <vector>

#include "kernels/ops/permute.h"

namespace moe::test {

template <typename Number>
void permute_reference(const kernels::PermuteArgs& args) {
  const int64_t width = args.shape.width;
  const auto* x = static_cast<const Number*>(args.x);
  auto* rows = static_cast<Number*>(args.rows);
  for (int64_t row = 0; row < args.shape.rows; ++row) {
    for (int64_t d = 0; d < width; ++d) {
      rows[row * width + d] = args.token[row] < 0 ? 0 : x[args.token[row] * width + d];
    }
  }
}

template <typename Number>
void unpermute_reference(const kernels::UnpermuteArgs& args) {
  const int64_t width = args.shape.width;
  const auto* rows = static_cast<const Number*>(args.rows);
  const auto* weight = static_cast<const Number*>(args.weight);
  std::vector<double> sums(static_cast<size_t>(args.shape.tokens * width), 0.0);
  for (int64_t row = 0; row < args.shape.rows; ++row) {
    for (int64_t d = 0; d < width && args.token[row] >= 0; ++d) {
      const double factor = args.is_weighted ? weight[row] : 1;
      sums[static_cast<size_t>(args.token[row] * width + d)] += factor * rows[row * width + d];
    }
  }
  std::transform(sums.begin(), sums.end(), static_cast<Number*>(args.y),
                 [](double sum) { return static_cast<Number>(sum); });
}

template <typename Number>
void unpermute_backward_reference(const kernels::UnpermuteBackwardArgs& args) {
  const int64_t width = args.shape.width;
  for (int64_t row = 0; row < args.shape.rows; ++row) {
    const int64_t token = args.token[row];
    double dot = 0;
    for (int64_t d = 0; d < width; ++d) {
      const double grad =
          token < 0 ? 0 : static_cast<const Number*>(args.grad_y)[token * width + d];
      const double weight = static_cast<const Number*>(args.weight)[row];
      static_cast<Number*>(args.grad_rows)[row * width + d] = static_cast<Number>(weight * grad);
      dot += grad * static_cast<const Number*>(args.rows)[row * width + d];
    }
    static_cast<Number*>(args.grad_weight)[row] = static_cast<Number>(dot);
  }
}

inline void segment_rows_reference(const kernels::SegmentRowsArgs& args) {
  const int64_t rows = kernels::segmented_rows(args.plan_rows, args.experts);
  std::fill_n(args.row_token, rows, -1);
  std::fill_n(args.row_of_token, args.tokens * args.columns, -1);
  std::fill_n(args.row_of_plan, args.plan_rows, rows);
  int64_t plan_row = 0, row = 0;
  for (int64_t expert = 0; expert < args.experts; ++expert) {
    for (int64_t i = 0; i < args.tokens_per_expert[expert]; ++i, ++plan_row, ++row) {
      const int64_t token = args.token[plan_row];
      args.row_token[row] = token;
      args.row_of_token[token * args.columns + args.choice[plan_row]] = static_cast<int32_t>(row);
      args.row_of_plan[plan_row] = row;
    }
    row = (row + kernels::kSegmentRows - 1) / kernels::kSegmentRows * kernels::kSegmentRows;
    args.ends[expert] = static_cast<int32_t>(row);
  }
}

}  // namespace moe::test
