// bf16 working copies of weights that train on a GPU: when they are kept, updated and written by
// AdamW. In a build without CUDA the GPU is emulated (tests/support/emulated_cuda).

#include "kernels/ops/bf16_working_copy.h"

#include <ATen/core/grad_mode.h>

#include <functional>

#include "core/train/step/optimizer.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "tests/support/gpu.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;
using kernels::bf16_working_copy;
using kernels::weight_for_products;

namespace {

Tensor trained(at::IntArrayRef shape) {
  const Tensor weight = at::randn(shape).to(kGpu).requires_grad_(true);
  kernels::keep_bf16_working_copy(weight);
  return weight;
}

bool is_rounding_of(const Tensor& copy, const Tensor& weight) {
  return copy.scalar_type() == at::kBFloat16 &&
         at::equal(copy.cpu(), weight.detach().cpu().to(at::kBFloat16));
}

// Fills the copy of `weight` with a value that is no rounding of a weight. An update removes it.
void mark(const Tensor& weight) { bf16_working_copy(weight).fill_(77); }
bool is_marked(const Tensor& copy) { return at::equal(copy.cpu(), at::full_like(copy.cpu(), 77)); }

// One step of a loss that depends on every element of `weight`.
void step(AdamW& optimizer, const Tensor& weight) {
  optimizer.clear_gradients();
  const Tensor x = at::randn({6, weight.size(1)}).to(kGpu, at::kBFloat16);
  kernels::linear(x, weight).to(at::kFloat).square().sum().backward();
  optimizer.step(0.1);
}

}  // namespace

TEST_CASE("a copy is valid until its weight is written", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  const Tensor weight = trained({9, 8});
  const Tensor copy = weight_for_products(weight, at::kBFloat16);
  CHECK(is_rounding_of(copy, weight));
  mark(weight);
  CHECK(is_marked(weight_for_products(weight, at::kBFloat16)));

  const at::NoGradGuard no_gradients;
  weight.mul_(3);
  CHECK(is_rounding_of(weight_for_products(weight, at::kBFloat16), weight));
  const Tensor part = weight.detach().view({-1}).narrow(0, 10, 20);  // as after a gather of shards
  part.copy_(at::randn({20}).to(kGpu));
  CHECK(is_rounding_of(weight_for_products(weight, at::kBFloat16), weight));
  CHECK(weight_for_products(weight, at::kBFloat16).is_same(copy));
}

TEST_CASE("AdamW updates the copy of a weight unless its moments are bf16", "[train][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  AdamWSettings settings;
  settings.moments = GENERATE(io::DType::kF32, io::DType::kBF16);
  const bool is_updated = settings.moments == io::DType::kF32;  // bf16 moments: updates in pieces
  const Tensor weight = trained({33, 16});
  AdamW optimizer(held_slices({{"weight", weight}}), settings);
  for (int64_t t = 0; t < 3; ++t) {
    const Tensor before = weight.detach().cpu().clone();
    step(optimizer, weight);
    CHECK(!at::equal(weight.detach().cpu(), before));
    CHECK(is_rounding_of(bf16_working_copy(weight), weight) == is_updated);
  }
  mark(weight);
  // A copy that AdamW has updated is valid and not rounded again.
  const Tensor copy = weight_for_products(weight, at::kBFloat16);
  CHECK((is_updated ? is_marked(copy) : is_rounding_of(copy, weight)));
}

TEST_CASE("AdamW with a clip scale equals AdamW of scaled gradients", "[train][gpu]") {
  MOE_NEED_GPU();
  for (const auto moments : {io::DType::kF32, io::DType::kBF16}) {
    AdamWSettings settings;
    settings.moments = moments;
    const auto stepped = [&](bool before) {
      at::manual_seed(5);
      const std::vector<model::NamedParameter> parameters = {{"matrix", trained({33, 16})},
                                                             {"norm", trained({7})}};
      AdamW optimizer(held_slices(parameters), settings);
      for (int64_t t = 0; t < 3; ++t) {
        for (const auto& parameter : parameters) {
          parameter.tensor.mutable_grad() = at::randn(parameter.tensor.sizes()).to(kGpu);
        }
        const double norm = gradient_norm(held_slices(parameters));
        const Tensor gradient = parameters[0].tensor.grad().cpu().clone();
        if (before) {
          for (const auto& parameter : parameters) {
            parameter.tensor.mutable_grad().mul_(clip_scale(norm, 1.0));
          }
          optimizer.step(0.1);
        } else {
          optimizer.step(0.1, clip_scale(norm, 1.0));
          CHECK(at::equal(parameters[0].tensor.grad().cpu(), gradient));
        }
      }
      return parameters;
    };
    const auto before = stepped(true), within = stepped(false);
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK(at::equal(before[i].tensor.detach().cpu(), within[i].tensor.detach().cpu()));
    }
  }
}

TEST_CASE("gradients accumulated in place for weights with copies equal those of autograd",
          "[train][gpu]") {
  MOE_NEED_GPU();
  const auto ends = at::tensor({8, 16}, at::kInt).to(kGpu);
  const std::vector<int64_t> counts = {9, 7};
  using Products = std::function<Tensor(const Tensor& rows, const std::vector<Tensor>& weights)>;
  const std::vector<Products> all = {
      [&](const Tensor& rows, const std::vector<Tensor>& weights) {
        return kernels::grouped_swiglu(rows, weights[0], weights[1], ends);
      },
      [&](const Tensor& rows, const std::vector<Tensor>& weights) {
        return kernels::grouped_swiglu(rows, weights[0], weights[1], counts);
      },
      [&](const Tensor& rows, const std::vector<Tensor>& weights) {
        return kernels::grouped_linear(rows, weights[0], ends);
      },
      [&](const Tensor& rows, const std::vector<Tensor>& weights) {
        return kernels::linear(rows, weights[0].select(0, 0)) +
               kernels::linear(rows, weights[2]);  // a view and a leaf
      }};
  for (size_t number = 0; number < all.size(); ++number) {
    CAPTURE(number);
    const auto summed = [&](bool keeps_copies) {
      at::manual_seed(6);
      std::vector<Tensor> weights;
      for (const auto& shape : {std::vector<int64_t>{2, 16, 8}, {2, 8, 8}, {16, 8}}) {
        weights.push_back(at::randn(shape).to(kGpu).requires_grad_(true));
        if (keeps_copies) {
          kernels::keep_bf16_working_copy(weights.back());
        }
      }
      for (int64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
        const Tensor rows = at::randn({16, 8}).to(kGpu, at::kBFloat16).requires_grad_(true);
        const Tensor y = all[number](rows, weights);
        y.backward(at::randn(y.sizes()).to(kGpu, at::kBFloat16));
      }
      return weights;
    };
    const auto in_place = summed(true), by_autograd = summed(false);
    for (size_t i = 0; i < in_place.size(); ++i) {
      REQUIRE(in_place[i].grad().defined() == by_autograd[i].grad().defined());
      if (in_place[i].grad().defined()) {
        // The order of f32 sums over 16 rows differs.
        CHECK(at::allclose(in_place[i].grad().cpu(), by_autograd[i].grad().cpu(), 1e-5, 1e-4));
      }
    }
  }
}

TEST_CASE("grouped products on a GPU read the copies, with counts on the host or the device",
          "[train][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  const Tensor gate_up = trained({2, 16, 8}), down = trained({2, 8, 8});
  const Tensor rows = at::randn({5, 8}).to(kGpu, at::kBFloat16);
  const Tensor ends = at::tensor({3, 5}, at::kInt).to(kGpu);
  const auto with_host_counts = [&] {
    return kernels::grouped_swiglu(rows, gate_up, down, std::vector<int64_t>{3, 2}).detach().cpu();
  };
  const auto with_device_counts = [&] {
    return kernels::grouped_swiglu(rows, gate_up, down, ends).detach().cpu();
  };
  // The two libraries of a GPU may round to neighbouring bf16 numbers, 2^-8 apart.
  const Tensor loop = with_host_counts().to(at::kFloat),
               grouped = with_device_counts().to(at::kFloat);
  CHECK((is_emulated() ? at::equal(loop, grouped) : at::allclose(loop, grouped, 0.01, 0.01)));
  CHECK(is_rounding_of(bf16_working_copy(gate_up), gate_up));
  CHECK(is_rounding_of(bf16_working_copy(down), down));
  bf16_working_copy(down).zero_();
  CHECK(with_host_counts().count_nonzero().item<int64_t>() == 0);
  CHECK(with_device_counts().count_nonzero().item<int64_t>() == 0);
}
