#pragma once
// RMSNorm and RMSNorm of a sum for the kernels of any device, against the formula in double and its
// autograd.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "kernels/ops/rms_norm.h"
#include "tests/support/catch.h"

namespace moe::test {

constexpr double kNormEpsilon = 1e-5;

// Inputs of the norm and upstream gradients. `added` and grad_sum are undefined without a sum.
struct NormInputs {
  at::Tensor x, added, weight;  // [T, D] twice, [D]
  at::Tensor grad, grad_sum;    // of y and of the sum; one of them may be undefined
};

// Undefined: not computed.
struct NormResults {
  at::Tensor sum, y, grad_x, grad_added, grad_weight;
};

// Runs the differentiable operation on a device.
inline NormResults norm_by_operation(const NormInputs& in, at::ScalarType type, at::Device device) {
  const auto leaf = [&](const at::Tensor& values) {
    return values.to(device).detach().clone().requires_grad_(true);
  };
  const bool to_bf16 = type == at::kBFloat16 && in.x.scalar_type() != at::kBFloat16;
  std::vector<at::Tensor> leaves = {leaf(in.x), leaf(in.weight)}, outputs, upstream;
  at::Tensor sum, y;
  if (in.added.defined()) {
    leaves.push_back(leaf(in.added));
    std::tie(sum, y) =
        kernels::add_rms_norm(leaves[0], leaves[2], leaves[1], kNormEpsilon, to_bf16);
  } else {
    y = kernels::rms_norm(leaves[0], leaves[1], kNormEpsilon, to_bf16);
  }
  REQUIRE(y.scalar_type() == type);
  for (const auto& [out, grad] : {std::pair{y, in.grad}, {sum, in.grad_sum}}) {
    if (grad.defined()) {
      outputs.push_back(out);
      upstream.push_back(grad.to(device));
    }
  }
  const auto grads = torch::autograd::grad(outputs, leaves, upstream, std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  const auto on_host = [](const at::Tensor& t) { return t.defined() ? t.detach().cpu() : t; };
  return {on_host(sum), on_host(y), on_host(grads[0]),
          in.added.defined() ? on_host(grads[2]) : at::Tensor(), on_host(grads[1])};
}

struct NormTolerance {
  double y, grad_x, grad_x_apart, grad_weight, grad_weight_apart;  // relative and absolute
};

// Checks run(inputs, type of y) for x in `from` and y, its gradient and `added` in `type`, on
// numbers that are exact in bf16. `used`: 1 for the gradient of the sum, 2 for that of y, 3 for
// both; 0: without a sum.
template <typename Run>
void check_norm(Run run, int64_t rows, int64_t width, at::ScalarType from, at::ScalarType type,
                int used, const NormTolerance& tolerance) {
  CAPTURE(rows, width, from, type, used);
  const auto exact = [&] { return at::randn({rows, width}).to(at::kBFloat16); };
  NormInputs in{exact().to(from), {}, at::randn({width}), {}, {}};
  in.weight = from == at::kDouble ? in.weight.to(from) : in.weight;
  in.grad = used == 1 ? at::Tensor() : exact().to(type);
  if (used != 0) {
    in.added = exact().to(type);
    in.grad_sum = used == 2 ? at::Tensor() : at::randn({rows, width});
  }
  const at::Tensor sum = used == 0 ? in.x : in.x + in.added;
  const at::Tensor total = sum.to(at::kDouble).requires_grad_(true);
  const at::Tensor weight = in.weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor y = weight * (total / at::sqrt((total * total).mean(-1, true) + kNormEpsilon));
  at::Tensor grad_x = at::zeros_like(total), grad_weight;
  if (in.grad.defined()) {
    const auto grads = torch::autograd::grad({y}, {total, weight}, {in.grad.to(at::kDouble)});
    grad_x = grads[0];
    grad_weight = grads[1];
  }
  grad_x = in.grad_sum.defined() ? grad_x + in.grad_sum : grad_x;

  const NormResults actual = run(in, type);
  const auto close = [&](const at::Tensor& found, const at::Tensor& expected, double relative,
                         double absolute) {
    // One rounding more where the result is bf16.
    const double rounding = found.scalar_type() == at::kBFloat16 ? 1.0 / (1 << 8) : 0;
    return at::allclose(found.to(at::kDouble), expected, relative + rounding, absolute);
  };
  CHECK((used == 0 || at::equal(actual.sum, sum)));
  CHECK(close(actual.y, y, tolerance.y, from == at::kDouble ? tolerance.y : 1e-6));
  CHECK(close(actual.grad_x, grad_x, tolerance.grad_x, tolerance.grad_x_apart));
  if (actual.grad_added.defined()) {
    CHECK(at::equal(actual.grad_added, actual.grad_x.to(type)));
  }
  CHECK(actual.grad_weight.defined() == grad_weight.defined());
  if (grad_weight.defined()) {
    CHECK(
        close(actual.grad_weight, grad_weight, tolerance.grad_weight, tolerance.grad_weight_apart));
  }
}

}  // namespace moe::test
