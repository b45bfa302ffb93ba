// A row is read once for its largest logit, once for the exponentials and once to scale them; the
// vector code is the compiler's (vector_math.h).

#include "kernels/ops/cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/device.h"
#include "kernels/ops/logsumexp.h"

namespace moe::kernels {

namespace {

constexpr int64_t kLanes = 16;

// z becomes exp(z - largest); returns the largest, and in `sum` what the row then adds up to.
MOE_VECTOR_CLONES float exponentials(float* z, int64_t count, double* sum) {
  const float most = row_largest(z, count);
  float lane_sum[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = vector_exp_negative(z[i + lane] - most);
      z[i + lane] = value;
      lane_sum[lane] += value;
    }
  }
  double total = 0;
  for (int64_t i = whole; i < count; ++i) {
    z[i] = vector_exp_negative(z[i] - most);
    total += z[i];
  }
  for (const float part : lane_sum) {
    total += part;
  }
  *sum = total;
  return most;
}

MOE_VECTOR_CLONES void multiply(float* z, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) {
    z[i] *= factor;
  }
}

double row_nll(float* z, int64_t target, int64_t vocabulary, double scale) {
  const double wanted = z[target];
  double sum = 0;
  const double most = exponentials(z, vocabulary, &sum);
  multiply(z, vocabulary, static_cast<float>(scale / sum));
  z[target] -= static_cast<float>(scale);
  return std::log(sum) + most - wanted;
}

}  // namespace

double softmax_nll_(at::Tensor& logits, const at::Tensor& target, double scale) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && target.dim() == 1 &&
                  target.size(0) == logits.size(0) && logits.scalar_type() == at::kFloat,
              "logits ", logits.sizes(), ", target ", target.sizes());
  if (logits.is_cuda()) {
    const at::Tensor wanted = target.to(logits.device()).contiguous();
    const at::Tensor nll = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
    softmax_nll_cuda(logits.data_ptr<float>(), wanted.const_data_ptr<int64_t>(),
                     nll.data_ptr<double>(), logits.size(0), logits.size(1), scale,
                     current_stream(logits));
    return nll.sum().item<double>();
  }
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  float* z = logits.data_ptr<float>();
  const int64_t* wanted = target.const_data_ptr<int64_t>();
  std::vector<double> nll(static_cast<size_t>(rows));
  at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      nll[static_cast<size_t>(row)] = row_nll(z + row * vocabulary, wanted[row], vocabulary, scale);
    }
  });
  double sum = 0;
  for (const double one : nll) {
    sum += one;
  }
  return sum;
}

double softmax_nll_reference(float* logits, const int64_t* target, int64_t rows, int64_t vocabulary,
                             double scale) {
  double nll = 0;
  for (int64_t row = 0; row < rows; ++row) {
    float* z = logits + row * vocabulary;
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) {
      most = std::max<double>(most, z[v]);
    }
    for (int64_t v = 0; v < vocabulary; ++v) {
      sum += std::exp(z[v] - most);
    }
    nll += std::log(sum) + most - z[target[row]];
    for (int64_t v = 0; v < vocabulary; ++v) {
      const double share = std::exp(z[v] - most) / sum;
      z[v] = static_cast<float>(scale * (share - (v == target[row] ? 1.0 : 0.0)));
    }
  }
  return nll;
}

}  // namespace moe::kernels
