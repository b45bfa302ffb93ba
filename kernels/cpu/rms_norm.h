#pragma once
// RMSNorm's loops on the CPU, f32: a row is read twice and nothing is kept between. Formulas and
// letters: kernels/ops/rms_norm.h.

#include <cstdint>

namespace moe::kernels {

// x, y [rows, width]; weight [width]; scale [rows] becomes 1 / sqrt(mean(x^2) + epsilon).
void rms_norm_forward_cpu(const float* x, const float* weight, float* y, float* scale, int64_t rows,
                          int64_t width, double epsilon);

// grad, x, grad_x [rows, width]; grad_weight [width]. Rows are summed in strips of one size, strip
// after strip: the same numbers for any number of threads.
void rms_norm_backward_cpu(const float* grad, const float* x, const float* weight,
                           const float* scale, float* grad_x, float* grad_weight, int64_t rows,
                           int64_t width);

}  // namespace moe::kernels
