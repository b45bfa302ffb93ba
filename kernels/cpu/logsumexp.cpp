#include "kernels/cpu/logsumexp.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/logsumexp.h"

namespace moe::kernels {

MOE_VECTOR_CLONES float row_max(const float* row, int64_t count) {
  return vector_reduce<float>(
      count, -INFINITY, [=](int64_t i) { return row[i]; },
      [](float max, float value) { return value > max ? value : max; });
}

MOE_VECTOR_CLONES double sum_of_exponentials(const float* row, int64_t count, float max) {
  return vector_sum<double>(count, [=](int64_t i) { return vector_exp_negative(row[i] - max); });
}

void logsumexp_cpu(const LogSumExpArgs& args) {
  at::parallel_for(0, args.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *first = args.logits + row * args.vocabulary, *last = first + args.vocabulary;
      const float max = row_max(first, args.vocabulary);
      args.logsumexp[row] =
          static_cast<float>(max + std::log(sum_of_exponentials(first, args.vocabulary, max)));
      // A row of NaNs has no largest number: its argmax is 0, and its log-sum-exp is NaN anyway.
      const float* found = std::find(first, last, max);
      args.argmax[row] = found == last ? 0 : found - first;
    }
  });
}

}  // namespace moe::kernels
