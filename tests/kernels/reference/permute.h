#pragma once
// The rows of a plan in segments, as a plain loop.

#include <algorithm>

#include "kernels/ops/permute.h"

namespace moe::test {

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
