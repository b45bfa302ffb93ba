#pragma once
// Tokens to rows in expert order, and rows back to tokens, weighted: what stands before and after
// the experts' products, and around an exchange of rows between processes.
//
//   permute     row_r = x_{token r}; zeros where row r has no token
//               d x_t = sum over the rows r of t of d row_r
//   unpermute   y_t = sum over the rows r of t of weight_r row_r; zeros where t has no row.
//   Weighted
//               it may be added to a residual: y_t = residual_t + that sum
//               d row_r = weight_r d y_{token r},   d weight_r = <row_r, d y_{token r}>
//
// So each is the other's gradient where weights are 1. No atomics: a token's rows are added in one
// order, and the numbers are the same every time and for any number of threads.
//
// T tokens, D width, R rows, C rows that a token may have, E experts, P rows of experts' segments.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

struct Permutation;  // of tensors; see permutation.h

// x [T, D] -> [R, D]. f32, bf16 or f64 on the CPU, f32 or bf16 on a GPU. Differentiable in x.
at::Tensor permute(const at::Tensor& x, const Permutation& permutation);

// rows [R, D] -> [T, D], weights 1. Sums of bf16 are made in f32 and rounded once. Differentiable
// in rows.
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation);

// rows [R, D], weight [R] f32 (f64 of f64), residual [T, D] as weight, or undefined for none ->
// [T, D] in the weight's type. Differentiable in all. A GPU adds the residual as it writes: the
// numbers are those of adding it afterwards.
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation,
                     const at::Tensor& weight, const at::Tensor& residual);
at::Tensor unpermute(const at::Tensor& rows, const Permutation& permutation,
                     const at::Tensor& weight);

// Plain memory. Numbers are f32 where not said otherwise.
enum class PermuteDtype { kF32, kBF16, kF64 };  // f64 on the CPU only

struct PermuteShape {
  int64_t tokens, rows, width;
  int64_t columns;  // C; 1 where no token has two rows
};

struct PermuteArgs {
  const int64_t* token;  // [R] of each row; -1: none, the row is zeros
  const int32_t* used;   // on a GPU rows from *used on are left as they are; null: none are
  PermuteShape shape;
  const void* x;  // [T, D]
  void* rows;     // [R, D]
  PermuteDtype dtype;
};
void permute_cpu(const PermuteArgs& args);
void permute_cuda(const PermuteArgs& args, void* stream);

struct UnpermuteArgs {
  const int64_t* token;         // [R], as above; what the CPU goes by
  const int32_t* row_of_token;  // [T, C] the rows of each token, -1: none; what a GPU goes by
  PermuteShape shape;
  const void* rows;    // [R, D]
  bool is_weighted;    // else every weight is 1; not told by `weight`, which is null of no rows too
  const void* weight;  // [R] f32, f64 of f64
  void* y;             // [T, D] of the weight's type, of the rows' type without weights
  PermuteDtype dtype;  // of the rows
  const float* residual = nullptr;  // [T, D] on a GPU, with weights; null: none
};
void unpermute_cpu(const UnpermuteArgs& args);
void unpermute_cuda(const UnpermuteArgs& args, void* stream);

// The gradients of an unpermute with weights.
struct UnpermuteBackwardArgs {
  const int64_t* token;
  const int32_t* used;  // as in PermuteArgs
  PermuteShape shape;
  const void *rows, *weight;
  const void* grad_y;  // [T, D] of the weight's type
  void* grad_rows;     // [R, D] of the rows' type
  void* grad_weight;   // [R] of the weight's type
  PermuteDtype dtype;  // of the rows
};
void unpermute_backward_cpu(const UnpermuteBackwardArgs& args);
void unpermute_backward_cuda(const UnpermuteBackwardArgs& args, void* stream);

// Products over segments of rows want each to start at a multiple of 8 rows, as tensor cores and
// `at::_grouped_mm` do. The rows between the end of an expert's rows and that multiple have no
// token.
inline constexpr int64_t kSegmentRows = 8;
inline constexpr int64_t kMaxSegmentExperts = 1024;  // more throw std::runtime_error

// P for a plan of at most `rows` rows.
constexpr int64_t segmented_rows(int64_t rows, int64_t experts) {
  return (rows + experts * (kSegmentRows - 1) + kSegmentRows - 1) / kSegmentRows * kSegmentRows;
}

struct SegmentRowsArgs {
  // The plan's lists, as core/route/plan.h has them: by expert, unused rows last with expert = E.
  const int64_t *token, *expert, *choice;  // [R]; choice < C, each (token, choice) once
  const int64_t* tokens_per_expert;        // [E]
  int64_t tokens, columns, experts, plan_rows;
  int64_t* row_token;     // [P] token of each row; -1: none
  int32_t* row_of_token;  // [T, C] row of each choice; -1: none
  int64_t* row_of_plan;   // [R] where each row of the plan went; P for unused ones
  int32_t* ends;          // [E] end of each expert's segment, a multiple of 8
};
void segment_rows_cuda(const SegmentRowsArgs& args, void* stream);

}  // namespace moe::kernels
