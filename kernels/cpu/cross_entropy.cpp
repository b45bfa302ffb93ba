// A row is read once for its largest logit, once for the exponentials and once to scale them; the
// compiler writes the vector code (vector_math.h).

#include "kernels/ops/cross_entropy.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/cpu/logsumexp.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// z becomes exp(z - max); returns the sum of what it becomes.
MOE_VECTOR_CLONES double exponentials(float* z, int64_t count, float max) {
  return vector_sum<double>(count,
                            [=](int64_t i) { return z[i] = vector_exp_negative(z[i] - max); });
}

MOE_VECTOR_CLONES void multiply(float* z, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) {
    z[i] *= factor;
  }
}

double row_loss(float* z, int64_t target, int64_t vocabulary, double scale) {
  const double target_logit = z[target], max = row_max(z, vocabulary);
  const double sum = exponentials(z, vocabulary, static_cast<float>(max));
  multiply(z, vocabulary, static_cast<float>(scale / sum));
  z[target] -= static_cast<float>(scale);
  return std::log(sum) + max - target_logit;
}

}  // namespace

void cross_entropy_cpu(const CrossEntropyArgs& args) {
  at::parallel_for(0, args.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      args.loss[row] = row_loss(args.logits + row * args.vocabulary, args.target[row],
                                args.vocabulary, args.scale);
    }
  });
}

}  // namespace moe::kernels
