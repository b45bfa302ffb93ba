#pragma once
// Tokens to rows in expert order and back, for products over segments that start at multiples of 8
// rows (as tensor cores and `at::_grouped_mm` want them), without a sum that atomics order.
//
// A row of the plan is choice c of token t: cell t * C + c. `origin` names the cell of each row,
// `position` the row of each cell; one is the other's inverse, so that gathering, combining and
// both their gradients only read. Rows between the end of an expert's rows and the next multiple of
// 8 are gaps: zeros, which add nothing to a weight's gradient. Rows after the last segment are
// never read and hold anything.
//
//   gather     rows[r] = x[t]                       d x[t] = sum_c d rows[position[t, c]]
//   combine    y[t] = sum_c weight[t, c] rows[position[t, c]]
//              d rows[r] = weight[t, c] d y[t]      d weight[t, c] = <rows[r], d y[t]>
//
// T tokens, C columns (choices a token may have), E experts, D width, P rows with gaps.

#include <cstdint>

namespace moe::kernels {

inline constexpr int64_t kSegmentRows = 8;
inline constexpr int64_t kMaxLayoutExperts = 1024;  // of the kernel; more throw

// P for a plan of at most `rows` rows.
constexpr int64_t padded_rows(int64_t rows, int64_t experts) {
  return (rows + experts * (kSegmentRows - 1) + kSegmentRows - 1) / kSegmentRows * kSegmentRows;
}

struct LayoutShape {
  int64_t tokens, columns, experts;
  int64_t rows;  // of the plan, unused ones too
};

// The plan's lists, as core/route/plan.h has them: by expert, unused rows last with expert = E.
struct PlanRows {
  const int64_t *token, *expert, *choice, *count;  // [rows]; choice < C, each cell once
  const int64_t* expert_rows;                      // [E]
};

struct LayoutMemory {
  int32_t* origin;    // [P] cell of the row; -1: a gap, or nothing
  int32_t* position;  // [T, C] row of the cell; -1: none
  int32_t* expert;    // [T, C] its expert; -1: none
  int32_t* times;     // [T, C] its multiplicity; 0: none
  int32_t* ends;      // [E] end of each expert's segment, gaps included: a multiple of 8
};

void lay_out_reference(const LayoutShape& shape, const PlanRows& plan, const LayoutMemory& to);
void lay_out_cuda(const LayoutShape& shape, const PlanRows& plan, const LayoutMemory& to,
                  void* stream);

struct RowsShape {
  int64_t tokens, columns, experts, width;
  int64_t rows;  // P
};

// References: plain loops, sums in double. Rows after the last segment stay as they are.
template <typename Number>
void gather_rows_reference(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                           const Number* x, Number* rows);
// weight may be null: every one is 1.
template <typename Number>
void combine_rows_reference(const RowsShape& shape, const int32_t* position, const Number* weight,
                            const Number* rows, Number* y);
template <typename Number>
void combine_rows_backward_reference(const RowsShape& shape, const int32_t* origin,
                                     const int32_t* ends, const Number* weight, const Number* rows,
                                     const Number* grad_y, Number* grad_rows, Number* grad_weight);

// The CUDA entry points (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t. x and rows f32 or bf16 alike.
void gather_rows_cuda(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                      const void* x, void* rows, bool is_bf16, void* stream);
// y [T, D] f32, or bf16 with y_is_bf16, which wants bf16 rows; summed in f32.
void combine_rows_cuda(const RowsShape& shape, const int32_t* position, const float* weight,
                       const void* rows, void* y, bool is_bf16, bool y_is_bf16, void* stream);
// grad_y [T, D] f32; grad_rows of the rows' type; grad_weight [T, C], 0 where there is no row.
void combine_rows_backward_cuda(const RowsShape& shape, const int32_t* origin, const int32_t* ends,
                                const float* weight, const void* rows, const float* grad_y,
                                void* grad_rows, float* grad_weight, bool is_bf16, void* stream);

}  // namespace moe::kernels
