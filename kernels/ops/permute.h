#pragma once
// Permutes tokens into rows, in expert or rank order, and combines rows back into tokens.
//
//   permute     row_r = x_{token r}; 0 if row r has no token
//               d x_t = sum over the rows r of token t of d row_r
//   unpermute   y_t = residual_t + sum over the rows r of token t of weight_r row_r
//               d row_r = weight_r d y_{token r},   d weight_r = <row_r, d y_{token r}>
//
// residual_t is 0 if not given. With weights of 1 each operation is the gradient of the other. The
// rows of a token are added in a fixed order, so that results are deterministic.
//
// T tokens, D width, R rows, C maximum rows per token, E experts, P rows of all segments.

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

struct Permutation;  // tensors; see permutation.h

// Returns [R, D]. x [T, D] f32, bf16 or f64. Differentiable in x.
at::Tensor permute(const at::Tensor& x, const Permutation& permutation);

// Returns [T, D], with all weights equal to 1. Sums of bf16 are computed in f32 and rounded once.
// Differentiable in rows [R, D].
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation);

// Returns [T, D] in the dtype of the weight. rows [R, D], weight [R] f32 (f64 for f64), residual
// [T, D] in the dtype of the weight, or undefined. Differentiable in all three. The residual is
// added to the complete sum; the GPU kernel does so in the same pass.
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation,
                     const at::Tensor& weight, const at::Tensor& residual);
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation,
                     const at::Tensor& weight);

struct PermuteShape {
  int64_t tokens, rows, width;
  int64_t columns;  // C; 1 if no token has two rows
};

struct PermuteArgs {
  const int64_t* token;  // [R], token of each row; -1: none, the row is zeros
  const int32_t* used;   // GPU only: rows from *used on are not written; null: all are written
  PermuteShape shape;
  const void* x;  // [T, D]
  void* rows;     // [R, D]
  bool is_bf16;
};
void permute_cpu(const PermuteArgs& args);
void permute_cuda(const PermuteArgs& args, void* stream);

struct UnpermuteArgs {
  const int64_t* token;         // [R] as above; used by the CPU
  const int32_t* row_of_token;  // [T, C], rows of each token, -1: none; used by a GPU
  PermuteShape shape;
  const void* rows;    // [R, D]
  bool is_weighted;    // false: weights are 1 (`weight` can also be null because R = 0)
  const void* weight;  // [R] f32
  void* y;             // [T, D] in the dtype of the weight; without weights that of the rows
  bool is_bf16;        // dtype of the rows: bf16 or f32
  const float* residual = nullptr;  // [T, D], GPU with weights; null: none
};
void unpermute_cpu(const UnpermuteArgs& args);
void unpermute_cuda(const UnpermuteArgs& args, void* stream);

// Gradients of a weighted unpermute.
struct UnpermuteBackwardArgs {
  const int64_t* token;
  const int32_t* used;  // as in PermuteArgs
  PermuteShape shape;
  const void *rows, *weight;
  const void* grad_y;  // [T, D] in the dtype of the weight
  void* grad_rows;     // [R, D] in the dtype of the rows
  void* grad_weight;   // [R] in the dtype of the weight
  bool is_bf16;        // dtype of the rows: bf16 or f32
};
void unpermute_backward_cpu(const UnpermuteBackwardArgs& args);
void unpermute_backward_cuda(const UnpermuteBackwardArgs& args, void* stream);

// The rows of each expert (a segment) start at a multiple of 8 rows, for fast grouped products on
// tensor cores (`at::_grouped_mm`). The rows that pad a segment have no token.
inline constexpr int64_t kSegmentRows = 8;
// segment_rows_cuda() throws std::runtime_error for more experts.
inline constexpr int64_t kMaxSegmentExperts = 1024;

// Returns P, the maximum number of rows in segments for a plan with at most `rows` rows.
constexpr int64_t segmented_rows(int64_t rows, int64_t experts) {
  return (rows + experts * (kSegmentRows - 1) + kSegmentRows - 1) / kSegmentRows * kSegmentRows;
}

struct SegmentRowsArgs {
  // Rows of a plan (core/route/plan.h), sorted by expert; unused rows are last and have expert = E.
  const int64_t *token, *expert, *choice;  // [R]; choice < C, each (token, choice) once
  const int64_t* tokens_per_expert;        // [E]
  int64_t tokens, columns, experts, plan_rows;
  int64_t* row_token;     // [P], token of each row; -1: none
  int32_t* row_of_token;  // [T, C], row of each choice; -1: none
  int64_t* row_of_plan;   // [R], new row of each row of the plan; P for unused ones
  int32_t* ends;          // [E], end of each expert's segment, a multiple of 8
};
void segment_rows_cuda(const SegmentRowsArgs& args, void* stream);

}  // namespace moe::kernels
