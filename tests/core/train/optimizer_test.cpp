#include "core/train/optimizer.h"

#include <cmath>

#include "tests/support/catch.h"

using namespace moe;
using namespace moe::train;
using torch::Tensor;

namespace {

// AdamW as the header writes it, one number at a time in double.
struct PlainAdamW {
  std::vector<double> weight, mean, square;
  double decay = 0;
  int64_t updates = 0;

  void step(const std::vector<double>& gradient, double lr, const AdamWSettings& settings) {
    ++updates;
    const double correction1 = 1 - std::pow(settings.beta1, static_cast<double>(updates));
    const double correction2 = 1 - std::pow(settings.beta2, static_cast<double>(updates));
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] -= lr * decay * weight[i];
      mean[i] = settings.beta1 * mean[i] + (1 - settings.beta1) * gradient[i];
      square[i] = settings.beta2 * square[i] + (1 - settings.beta2) * gradient[i] * gradient[i];
      weight[i] -= lr / correction1 * mean[i] /
                   (std::sqrt(square[i]) / std::sqrt(correction2) + settings.eps);
    }
  }
};

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kDouble).reshape({-1}).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

double largest_difference(const Tensor& tensor, const std::vector<double>& expected) {
  const auto values = values_of(tensor);
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::abs(values[i] - expected[i]));
  }
  return largest;
}

std::vector<model::NamedParameter> some_parameters() {
  at::manual_seed(3);
  return {{"matrix", at::randn({7, 5}).requires_grad_(true)},
          {"experts", at::randn({3, 4, 2}).requires_grad_(true)},
          {"norm", at::randn({11}).requires_grad_(true)}};
}

}  // namespace

TEST_CASE("AdamW equals a plain loop in double over twenty steps", "[train]") {
  const AdamWSettings settings{0.1, 0.9, 0.95, 1e-8};
  const auto parameters = some_parameters();
  std::vector<PlainAdamW> plain;
  for (const auto& [name, tensor] : parameters) {
    const std::vector<double> zeros(static_cast<size_t>(tensor.numel()));
    plain.push_back(
        {values_of(tensor), zeros, zeros, name == "norm" ? 0.0 : settings.weight_decay, 0});
  }
  AdamW optimizer(parameters, settings);
  for (int step = 0; step < 20; ++step) {
    const double lr = 1e-2 / (1 + step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor gradient = at::randn_like(parameters[i].tensor.detach());
      parameters[i].tensor.mutable_grad() = gradient;
      plain[i].step(values_of(gradient), lr, settings);
    }
    optimizer.step(lr);
  }
  // Weights of order 3 in f32: half an ulp is 1.2e-7, at most 3 roundings of the weight a step, 20
  // steps; the update itself, below 1e-2 in total 3.6e-2, adds relative errors of about 10 eps:
  // 4e-8.
  for (size_t i = 0; i < parameters.size(); ++i) {
    CHECK(largest_difference(parameters[i].tensor, plain[i].weight) < 20 * 3 * 1.2e-7 + 4e-8);
  }
}

TEST_CASE("a parameter without gradient keeps its value, moments and count", "[train]") {
  const auto parameters = some_parameters();
  AdamW optimizer(parameters, {0.1, 0.9, 0.999, 1e-8});
  const Tensor before = parameters[0].tensor.detach().clone();
  parameters[1].tensor.mutable_grad() = at::ones({3, 4, 2});
  optimizer.step(1e-2);
  CHECK(at::equal(parameters[0].tensor.detach(), before));
  // Its first update is still a first update: lr * g / (|g| + eps), after the decay.
  parameters[0].tensor.mutable_grad() = at::full({7, 5}, 0.25);
  optimizer.step(1e-2);
  CHECK(at::allclose(parameters[0].tensor.detach(), before * (1 - 1e-3) - 1e-2, 1e-6, 1e-6));
  optimizer.clear_gradients();
  CHECK_FALSE(parameters[0].tensor.grad().defined());
}

TEST_CASE("a gradient of another memory layout is read by its shape", "[train]") {
  const auto parameters = some_parameters();
  AdamW optimizer(parameters, {});
  const Tensor before = parameters[0].tensor.detach().clone();
  const Tensor gradient = at::randn({5, 7}).t();
  parameters[0].tensor.mutable_grad() = gradient;
  optimizer.step(1e-2);
  CHECK(at::allclose(parameters[0].tensor.detach(), before - 1e-2 * gradient.sign(), 1e-5, 1e-6));
}

TEST_CASE("the gradient norm is that of all gradients together, also over many pieces", "[train]") {
  std::vector<model::NamedParameter> parameters = some_parameters();
  CHECK(gradient_norm(parameters) == 0.0);
  parameters[0].tensor.mutable_grad() = at::full({7, 5}, 2.0);
  parameters[2].tensor.mutable_grad() = at::full({11}, -1.0);
  CHECK(gradient_norm(parameters) == Approx(std::sqrt(35 * 4 + 11)));
  const int64_t many = (int64_t{1} << 20) * 2 + 17;
  const std::vector<model::NamedParameter> large{{"large", at::zeros({many}).requires_grad_(true)}};
  large[0].tensor.mutable_grad() = at::full({many}, 0.1);
  // 1024 squares in at least 8 lanes: 128 roundings of 6e-8 in a lane's sum, half of that in its
  // root: 4e-6.
  CHECK(gradient_norm(large) == Approx(0.1 * std::sqrt(static_cast<double>(many))).epsilon(4e-6));
}

TEST_CASE("clipping scales as clip_grad_norm_ does and leaves small gradients alone", "[train]") {
  const auto parameters = some_parameters();
  const auto clipped = [&](double max_norm) {
    parameters[0].tensor.mutable_grad() = at::full({7, 5}, 2.0);
    clip_gradients(parameters, gradient_norm(parameters), max_norm);
    return parameters[0].tensor.grad()[0][0].item<double>();
  };
  const double norm = std::sqrt(35 * 4.0);
  CHECK(clipped(1.0) == Approx(2.0 / (norm + 1e-6)).epsilon(1e-6));
  CHECK(clipped(norm + 1) == 2.0);
  CHECK(clipped(0) == 2.0);
}
