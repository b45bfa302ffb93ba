#include "kernels/ops/cross_entropy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Replaces z by exp(z - max) and returns the sum.
MOE_VECTOR_CLONES double exponentials(float* z, int64_t count, float max) {
  return vector_sum<double>(count,
                            [=](int64_t i) { return z[i] = vector_exp_negative(z[i] - max); });
}

MOE_VECTOR_CLONES void multiply(float* z, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) {
    z[i] *= factor;
  }
}

// Multiplies and rounds to bf16, into the first half of the memory. Rounds pieces into a buffer, so
// that no element is overwritten before it is read.
void multiply_to_bf16(float* z, int64_t count, float factor) {
  constexpr int64_t kPiece = 512;
  std::array<uint16_t, kPiece> rounded;
  auto* to = reinterpret_cast<std::byte*>(z);
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t piece = std::min(kPiece, count - i);
    multiply(z + i, piece, factor);
    f32_to_bf16(z + i, piece, rounded.data());
    std::memcpy(to + i * sizeof(uint16_t), rounded.data(), piece * sizeof(uint16_t));
  }
}

// Returns the loss of a row and replaces the row by its gradient.
double row_loss(float* z, int64_t target, int64_t vocabulary, double scale, bool to_bf16) {
  const double target_logit = z[target], max = row_max(z, vocabulary);
  const double sum = exponentials(z, vocabulary, static_cast<float>(max));
  const auto factor = static_cast<float>(scale / sum);
  const float at_target = z[target] * factor - static_cast<float>(scale);
  if (to_bf16) {
    multiply_to_bf16(z, vocabulary, factor);
    f32_to_bf16(&at_target, 1, reinterpret_cast<uint16_t*>(z) + target);
  } else {
    multiply(z, vocabulary, factor);
    z[target] = at_target;
  }
  return std::log(sum) + max - target_logit;
}

MOE_VECTOR_CLONES double sum_of_exponentials(const float* row, int64_t count, float max) {
  return vector_sum<double>(count, [=](int64_t i) { return vector_exp_negative(row[i] - max); });
}

}  // namespace

void cross_entropy_cpu(const CrossEntropyArgs& args) {
  at::parallel_for(0, args.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      args.loss[row] = row_loss(args.logits + row * args.vocabulary, args.target[row],
                                args.vocabulary, args.scale, args.gradient_is_bf16);
    }
  });
}

void logsumexp_cpu(const LogSumExpArgs& args) {
  at::parallel_for(0, args.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *first = args.logits + row * args.vocabulary, *last = first + args.vocabulary;
      const float max = row_max(first, args.vocabulary);
      args.logsumexp[row] =
          static_cast<float>(max + std::log(sum_of_exponentials(first, args.vocabulary, max)));
      // A row of NaNs has no maximum: argmax 0, and a log-sum-exp of NaN.
      const float* argmax = std::find(first, last, max);
      args.argmax[row] = argmax == last ? 0 : argmax - first;
    }
  });
}

}  // namespace moe::kernels
