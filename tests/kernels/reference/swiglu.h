#pragma once
// SwiGLU for the kernels of any device, against the formula in double and its autograd.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/swiglu.h"
#include "tests/support/catch.h"

namespace moe::test {

// Results of the kernel on the CPU: the activation, its gradient, and the activation that the
// backward kernel writes where the gradient of the activation was.
struct SwigluResults {
  at::Tensor out, grad, rewritten, same_grad;
};

// run(hidden, grad_out) runs the kernels in the dtype of its tensors, which are on the CPU.
template <typename Run>
void check_swiglu(Run run, int64_t rows, int64_t width) {
  at::Tensor hidden = (at::randn({rows, 2 * width}) * 3).to(at::kBFloat16).to(at::kFloat);
  if (rows > 0) {
    hidden.flatten()[0] = 90.0F;   // sigmoid saturates at 1
    hidden.flatten()[1] = -90.0F;  // and at 0
  }
  const at::Tensor grad_out = at::randn({rows, width}).to(at::kBFloat16).to(at::kFloat);
  const at::Tensor wide = hidden.to(at::kDouble).requires_grad_(true);
  const at::Tensor out = at::silu(wide.narrow(1, 0, width)) * wide.narrow(1, width, width);
  const at::Tensor grad = torch::autograd::grad({out}, {wide}, {grad_out.to(at::kDouble)})[0];
  for (const auto type : {at::kFloat, at::kBFloat16}) {  // the numbers are exact in both
    CAPTURE(rows, width, static_cast<int>(type));
    const SwigluResults actual = run(hidden.to(type), grad_out.to(type));
    // f32: 8 roundings of 2^-24 on values below 300. bf16: one more, of 2^-9.
    const double epsilon = type == at::kFloat ? 1.0 / (1 << 24) : 1.0 / (1 << 11);
    const auto close = [&](const at::Tensor& x, const at::Tensor& expected) {
      return at::allclose(x.to(at::kDouble), expected, 8 * epsilon, 2400.0 / (1 << 24));
    };
    CHECK(close(actual.out, out));
    CHECK(close(actual.grad, grad));
    CHECK(at::equal(actual.rewritten, actual.out));
    CHECK(at::equal(actual.same_grad, actual.grad));
  }
}

}  // namespace moe::test
