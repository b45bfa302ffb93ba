#pragma once
// The weight of every row, and what its gradient does to the logits: the gates of
// core/route/gates.h over the cells of kernels/ops/expert_rows.h. With a the logits of a token, g =
// softmax(a), and over its cells c the expert e_c and the multiplicity n_c
// (core/route/README.md):
//
//   selected     w_c = n_c e^{a[e_c]} / sum_c n_c e^{a[e_c]}        (Rectify-Router, Eq. 2, 3)
//   probability  w_c = n_c g[e_c]                                   (top-p, Eq. 5)
//   positive     w_c = n_c max(0, a[e_c])                           (ReMoE)
//
// and with U_c the gradient of w_c and S = sum_c w_c U_c
//
//   d a[l] = sum_{c: e_c = l} w_c U_c - b_l S       b = g straight through and for probability,
//                                                   b_l = sum_{c: e_c = l} w_c for selected without
//   d a[l] = sum_{c: e_c = l, a[l] > 0} n_c U_c     positive
//
// T tokens, C columns, E experts. Cells without a row have expert -1 and weigh 0.

#include <cstdint>

namespace moe::kernels {

enum class GateRule { kSelected, kProbability, kPositive };

struct GateShape {
  int64_t tokens, columns, experts;
  GateRule rule;
  bool straight_through;  // of kSelected
};

// logits [T, E]; expert, times [T, C]; weight [T, C].
template <typename Number>
void row_gates_reference(const GateShape& shape, const Number* logits, const int32_t* expert,
                         const int32_t* times, Number* weight);
// grad_weight [T, C] -> grad_logits [T, E].
template <typename Number>
void row_gates_backward_reference(const GateShape& shape, const Number* logits,
                                  const int32_t* expert, const int32_t* times, const Number* weight,
                                  const Number* grad_weight, Number* grad_logits);

// The CUDA entry points (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t.
void row_gates_cuda(const GateShape& shape, const float* logits, const int32_t* expert,
                    const int32_t* times, float* weight, void* stream);
void row_gates_backward_cuda(const GateShape& shape, const float* logits, const int32_t* expert,
                             const int32_t* times, const float* weight, const float* grad_weight,
                             float* grad_logits, void* stream);

}  // namespace moe::kernels
