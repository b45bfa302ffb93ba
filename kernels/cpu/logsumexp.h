#pragma once
// What softmaxes on the CPU ask of a row of numbers.

#include <cstdint>

namespace moe::kernels {

// The largest of `count` numbers; -infinity of none. NaNs are passed over.
float row_max(const float* row, int64_t count);

// The sum over `count` numbers of exp(x - max), none of which is above `max`.
double sum_of_exponentials(const float* row, int64_t count, float max);

}  // namespace moe::kernels
