#pragma once
// Gradients by central differences in f64. With step h the error of the difference is O(h^2) from
// curvature plus O(eps / h) from rounding; h = 1e-6 makes both about 1e-10 for numbers of order
// one, so a tolerance of 1e-7 leaves room for third derivatives and sums of a few hundred terms.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>

namespace moe::test {

inline constexpr double kGradTolerance = 1e-7;

// Returns d f(x) / d x of a scalar function; x f64, any shape. f must not change its argument.
inline at::Tensor finite_difference(const std::function<at::Tensor(const at::Tensor&)>& f,
                                    const at::Tensor& x, double step = 1e-6) {
  const at::NoGradGuard no_grad;
  const at::Tensor at = x.detach().clone().contiguous();
  at::Tensor gradient = at::zeros_like(at);
  auto* value = at.data_ptr<double>();
  auto* slope = gradient.data_ptr<double>();
  for (int64_t i = 0; i < at.numel(); ++i) {
    const double kept = value[i];
    value[i] = kept + step;
    const double above = f(at).item<double>();
    value[i] = kept - step;
    const double below = f(at).item<double>();
    value[i] = kept;
    slope[i] = (above - below) / (2 * step);
  }
  return gradient;
}

// Returns the gradient by autograd.
inline at::Tensor autograd(const std::function<at::Tensor(const at::Tensor&)>& f,
                           const at::Tensor& x) {
  const at::Tensor at = x.detach().clone().requires_grad_(true);
  f(at).backward();
  return at.grad().defined() ? at.grad() : at::zeros_like(at);
}

// Returns the largest |a - b| / (1 + |b|).
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return a.sizes() == b.sizes() ? 0 : 1e300;
  }
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).abs() / (wide.abs() + 1)).max().item<double>();
}

}  // namespace moe::test
