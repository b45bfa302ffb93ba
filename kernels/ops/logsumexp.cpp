// The vector code is the compiler's (vector_math.h).

#include "kernels/ops/logsumexp.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/device.h"

namespace moe::kernels {

namespace {

constexpr int64_t kLanes = 16;

}  // namespace

MOE_VECTOR_CLONES double sum_of_exponentials(const float* z, int64_t count, float most) {
  float lane[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const float x = z[i + k] - most;
      lane[k] += vector_exp_negative(x);
    }
  }
  double sum = 0;
  for (int64_t i = whole; i < count; ++i) {
    const float x = z[i] - most;
    sum += vector_exp_negative(x);
  }
  for (const float part : lane) {
    sum += part;
  }
  return sum;
}

MOE_VECTOR_CLONES float row_largest(const float* z, int64_t count) {
  float lane[kLanes];
  std::fill_n(lane, kLanes, -INFINITY);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] = z[i + k] > lane[k] ? z[i + k] : lane[k];
    }
  }
  float most = *std::max_element(lane, lane + kLanes);
  for (int64_t i = whole; i < count; ++i) {
    most = z[i] > most ? z[i] : most;
  }
  return most;
}

RowScores row_scores(const at::Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0, "logits ", logits.sizes());
  const at::Tensor contiguous = logits.contiguous();
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  RowScores scores{at::empty({rows}, logits.options().dtype(at::kFloat)),
                   at::empty({rows}, logits.options().dtype(at::kLong))};
  const float* z = contiguous.const_data_ptr<float>();
  float* logsumexp = scores.logsumexp.data_ptr<float>();
  int64_t* argmax = scores.argmax.data_ptr<int64_t>();
  if (logits.is_cuda()) {
    row_scores_cuda(z, logsumexp, argmax, rows, vocabulary, current_stream(logits));
    return scores;
  }
  at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = z + row * vocabulary;
      const float most = row_largest(values, vocabulary);
      logsumexp[row] =
          static_cast<float>(most + std::log(sum_of_exponentials(values, vocabulary, most)));
      // Not found where no entry is a number: the first then, whose row says so anyway.
      const float* found = std::find(values, values + vocabulary, most);
      argmax[row] = found == values + vocabulary ? 0 : found - values;
    }
  });
  return scores;
}

void row_scores_reference(const float* logits, float* logsumexp, int64_t* argmax, int64_t rows,
                          int64_t vocabulary) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* z = logits + row * vocabulary;
    argmax[row] = 0;
    for (int64_t v = 1; v < vocabulary; ++v) {
      argmax[row] = z[v] > z[argmax[row]] ? v : argmax[row];
    }
    const double most = z[argmax[row]];
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) {
      sum += std::exp(z[v] - most);
    }
    logsumexp[row] = static_cast<float>(most + std::log(sum));
  }
}

}  // namespace moe::kernels
