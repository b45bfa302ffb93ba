// The bf16 copies of weights that train on a GPU: when they are kept, when they are made again,
// and that AdamW writes them. In a build without CUDA the GPU is an emulated one
// (tests/support/emulated_cuda).

#include "kernels/ops/bf16_working_copy.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "core/train/step/optimizer.h"
#include "kernels/ops/device.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "tests/support/gpu.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using kernels::bf16_working_copy;
using kernels::weight_for_products;
using test::is_emulated;
using test::kGpu;

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

// What no rounding of a weight gives, in its copy: whoever makes the copy again removes it.
void spoil(const Tensor& weight) { bf16_working_copy(weight).fill_(77); }
bool is_spoilt(const Tensor& copy) { return at::equal(copy.cpu(), at::full_like(copy.cpu(), 77)); }

// One step from a loss that every number of `weight` has a part in.
void step(AdamW& optimizer, const Tensor& weight) {
  optimizer.clear_gradients();
  const Tensor x = at::randn({6, weight.size(1)}).to(kGpu, at::kBFloat16);
  kernels::linear(x, weight).to(at::kFloat).square().sum().backward();
  optimizer.step(0.1);
}

}  // namespace

TEST_CASE("a copy is kept until its weight is written", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  const Tensor weight = trained({9, 8});
  const Tensor copy = weight_for_products(weight, at::kBFloat16);
  CHECK(is_rounding_of(copy, weight));
  spoil(weight);
  CHECK(is_spoilt(weight_for_products(weight, at::kBFloat16)));

  const at::NoGradGuard no_gradients;
  weight.mul_(3);
  CHECK(is_rounding_of(weight_for_products(weight, at::kBFloat16), weight));
  const Tensor part = weight.detach().view({-1}).narrow(0, 10, 20);  // as shards are written back
  part.copy_(at::randn({20}).to(kGpu));
  CHECK(is_rounding_of(weight_for_products(weight, at::kBFloat16), weight));
  CHECK(weight_for_products(weight, at::kBFloat16).is_same(copy));
}

TEST_CASE("a weight that keeps no copy, and one in f32, is read itself", "[kernels][gpu]") {
  MOE_NEED_GPU();
  const Tensor weight = trained({9, 8}), other = at::randn({9, 8}).to(kGpu);
  CHECK(weight_for_products(weight, at::kFloat).is_same(weight));
  CHECK(weight_for_products(other, at::kBFloat16).is_same(other));
  CHECK(!bf16_working_copy(weight).defined());  // nobody has asked
  weight_for_products(weight, at::kBFloat16);
  CHECK(bf16_working_copy(weight).defined());
  CHECK(!bf16_working_copy(weight.detach()).defined());
}

TEST_CASE("AdamW writes a weight's copy in its own pass", "[train][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  const Tensor weight = trained({33, 16});
  AdamW optimizer(whole_slices({{"weight", weight}}), {});
  for (int64_t t = 0; t < 3; ++t) {
    const Tensor before = weight.detach().cpu().clone();
    step(optimizer, weight);
    CHECK(!at::equal(weight.detach().cpu(), before));
    CHECK(is_rounding_of(bf16_working_copy(weight), weight));
  }
  spoil(weight);  // nobody rounds it again
  CHECK(is_spoilt(weight_for_products(weight, at::kBFloat16)));
}

TEST_CASE("a copy that AdamW left alone is made again", "[train][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  AdamWSettings settings;
  settings.moments = io::DType::kBF16;  // in pieces, which have no copies
  const Tensor weight = trained({33, 16});
  AdamW optimizer(whole_slices({{"weight", weight}}), settings);
  step(optimizer, weight);
  CHECK(!is_rounding_of(bf16_working_copy(weight), weight));
  CHECK(is_rounding_of(weight_for_products(weight, at::kBFloat16), weight));
}

TEST_CASE("AdamW clips as it reads gradients, with the numbers of clipping before",
          "[train][gpu]") {
  MOE_NEED_GPU();
  for (const auto moments : {io::DType::kF32, io::DType::kBF16}) {
    AdamWSettings settings;
    settings.moments = moments;
    const auto stepped = [&](bool before) {
      at::manual_seed(5);
      const std::vector<model::NamedParameter> parameters = {{"matrix", trained({33, 16})},
                                                             {"norm", trained({7})}};
      AdamW optimizer(parameters, settings);
      for (int64_t t = 0; t < 3; ++t) {
        for (const auto& parameter : parameters) {
          parameter.tensor.mutable_grad() = at::randn(parameter.tensor.sizes()).to(kGpu);
        }
        const double norm = gradient_norm(parameters);
        const Tensor gradient = parameters[0].tensor.grad().cpu().clone();
        if (before) {
          clip_gradients(parameters, norm, 1.0);
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

TEST_CASE("gradients of weights with copies are added where they are, with autograd's numbers",
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
               kernels::linear(rows, weights[2]);  // of a leaf, and of a part of one
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
        // A product of 16 rows added to a sum is another order of the sum, in f32.
        CHECK(at::allclose(in_place[i].grad().cpu(), by_autograd[i].grad().cpu(), 1e-5, 1e-4));
      }
    }
  }
}

TEST_CASE("no gradient of a second micro-batch stands beside the sum", "[train][gpu]") {
  MOE_NEED_GPU();
  const auto ends = at::tensor({8, 16}, at::kInt).to(kGpu);
  const Tensor rows = at::ones({16, 1024}).to(kGpu, at::kBFloat16);
  // The smaller first: peaks are those of the whole process.
  for (const auto& shape : {std::vector<int64_t>{2048, 1024}, {2, 2048, 1024}}) {
    const Tensor weight = at::zeros(shape).to(kGpu).requires_grad_(true);
    kernels::keep_bf16_working_copy(weight);
    const auto backward = [&] {
      const Tensor y = weight.dim() == 2 ? kernels::linear(rows, weight)
                                         : kernels::grouped_linear(rows, weight, ends);
      y.sum().backward();
    };
    backward();
    const uint64_t before = kernels::gpu_peak_bytes(0);
    backward();
    CHECK(kernels::gpu_peak_bytes(0) < before + weight.nbytes() / 4);
  }
}

TEST_CASE("a gradient that is asked for by name comes back where no sum is", "[train][gpu]") {
  MOE_NEED_GPU();
  const Tensor weight = trained({16, 8}), rows = at::randn({4, 8}).to(kGpu, at::kBFloat16);
  const auto gradient = torch::autograd::grad({kernels::linear(rows, weight).sum()}, {weight});
  CHECK(gradient[0].defined());
  CHECK(!weight.grad().defined());
}

TEST_CASE("experts' products on a GPU read the copies, with counts on the host or the device",
          "[train][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  const Tensor gate_up = trained({2, 16, 8}), down = trained({2, 8, 8});
  const Tensor rows = at::randn({5, 8}).to(kGpu, at::kBFloat16);
  const Tensor ends = at::tensor({3, 5}, at::kInt).to(kGpu);
  const auto here = [&] {
    return kernels::grouped_swiglu(rows, gate_up, down, std::vector<int64_t>{3, 2}).detach().cpu();
  };
  const auto there = [&] {
    return kernels::grouped_swiglu(rows, gate_up, down, ends).detach().cpu();
  };
  // Products of a GPU's two libraries may round to the next number of bf16, 2^-8 away.
  const Tensor loop = here().to(at::kFloat), grouped = there().to(at::kFloat);
  CHECK((is_emulated() ? at::equal(loop, grouped) : at::allclose(loop, grouped, 0.01, 0.01)));
  CHECK(is_rounding_of(bf16_working_copy(gate_up), gate_up));
  CHECK(is_rounding_of(bf16_working_copy(down), down));
  bf16_working_copy(down).zero_();
  CHECK(here().count_nonzero().item<int64_t>() == 0);
  CHECK(there().count_nonzero().item<int64_t>() == 0);
}
