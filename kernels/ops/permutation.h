#pragma once
// Which row is of which token, as the tensors that permute() and unpermute() go by. The letters are
// those of permute.h.

#include <ATen/core/Tensor.h>

#include "kernels/ops/permute.h"

namespace moe::kernels {

struct Permutation {
  at::Tensor token;         // [R] i64, of each row; -1: none, the row is zeros
  at::Tensor row_of_token;  // [T, C] i32, the rows of each token, -1: none. On a GPU only
  at::Tensor used;          // [1] i32 on a GPU: rows from here on hold anything; undefined: none do
  int64_t tokens = 0;       // T
  int64_t columns = 1;      // C
};

// Row r is token[r]'s row for its choice choice[r] < choices. token, choice [R] i64, each pair
// once. A token's rows are added in their order on the CPU, in the order of the choices on a GPU.
Permutation permutation_of(const at::Tensor& token, const at::Tensor& choice, int64_t tokens,
                           int64_t choices);

// Row r is row index[r] of `tokens` others, each of which is named once at most. index [R] i64.
Permutation permutation_of(const at::Tensor& index, int64_t tokens);

// A plan's rows in segments that start at multiples of 8 rows (permute.h), on a GPU. Nothing is
// read back: all sizes follow from the plan's room for rows.
struct SegmentedRows {
  Permutation permutation;
  at::Tensor row_of_plan;  // [R] i64, P for rows that the plan does not use
  at::Tensor ends;         // [E] i32, where each expert's segment ends
};

// Of a plan's lists: token, expert, choice [R] i64, tokens_per_expert [E] i64.
SegmentedRows segment_rows(const at::Tensor& token, const at::Tensor& expert,
                           const at::Tensor& choice, const at::Tensor& tokens_per_expert,
                           int64_t tokens, int64_t choices);

}  // namespace moe::kernels
