#pragma once
// Tensors that map rows to tokens, for permute() and unpermute() (permute.h).

#include <ATen/core/Tensor.h>

#include "kernels/ops/permute.h"

namespace moe::kernels {

struct Permutation {
  at::Tensor token;         // [R] i64, token of each row; -1: none, the row is zeros
  at::Tensor row_of_token;  // [T, C] i32, rows of each token, -1: none; GPU only
  at::Tensor used;          // [1] i32, optional, GPU only: rows from *used on are not computed
  int64_t tokens = 0;       // T
  int64_t columns = 1;      // C
};

// Returns the permutation whose row r belongs to token[r] and its choice choice[r] < choices.
// token, choice [R] i64; each pair occurs once. The rows of a token are added in row order on the
// CPU, in choice order on a GPU.
Permutation make_permutation(const at::Tensor& token, const at::Tensor& choice, int64_t tokens,
                             int64_t choices);

// Returns the permutation whose row r belongs to token index[r]. index [R] i64, each value once.
Permutation make_permutation(const at::Tensor& index, int64_t tokens);

// The rows of a plan in segments that start at multiples of 8 rows, on a GPU.
struct SegmentedRows {
  Permutation permutation;
  at::Tensor row_of_plan;  // [R] i64, P for unused rows of the plan
  at::Tensor ends;         // [E] i32, end of each expert's segment
};

// Returns the rows of a plan in segments. token, expert, choice [R] i64, tokens_per_expert [E] i64.
// All sizes follow from R; nothing is copied to the host.
SegmentedRows segment_rows(const at::Tensor& token, const at::Tensor& expert,
                           const at::Tensor& choice, const at::Tensor& tokens_per_expert,
                           int64_t tokens, int64_t choices);

}  // namespace moe::kernels
