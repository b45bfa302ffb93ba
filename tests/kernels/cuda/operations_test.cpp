// The operations as their callers use them, on a GPU against the CPU: device choice, gradients,
// streams. The other files of this folder compare kernels with references.

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include "kernels/ops/adamw.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"
#include "kernels/ops/rope.h"
#include "tests/support/gpu.h"
#include "tests/support/segments.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;
using Tensors = std::vector<Tensor>;

namespace {

// f(inputs) and the gradients of its sum with a fixed upstream, on the device, brought back.
template <typename Operation>
Tensors results(const Tensors& inputs, at::Device device, Operation operation) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.to(device).detach().clone().requires_grad_(true));
  }
  const Tensor out = operation(leaves);
  const Tensor upstream = at::linspace(-1, 1, out.numel()).view(out.sizes()).to(device);
  Tensors all = torch::autograd::grad({(out.to(at::kFloat) * upstream).sum()}, leaves);
  all.push_back(out.detach());
  for (Tensor& each : all) {
    each = each.cpu().to(at::kFloat);
  }
  return all;
}

// Sums of up to 200 products of order one in f32, in another order. `rounding`: of a result in
// bf16.
template <typename Operation>
void check_on_gpu(const Tensors& inputs, Operation operation, double rounding = 1e-5) {
  const Tensors actual = results(inputs, kGpu, operation);
  const Tensors expected = results(inputs, at::kCPU, operation);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(at::allclose(actual[i], expected[i], rounding, 1e-4));
  }
}

TEST_CASE("logits in f32 on a GPU equal the CPU's, of f32 and of bf16", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  for (const int64_t experts : {1, 8, 40, 70}) {  // the last is LibTorch's product
    const Tensor x = at::randn({33, 100}), weight = at::randn({experts, 100});
    const auto logits = [](const Tensors& in) {
      const Tensor y = linear_in_f32(in[0], in[1]);
      CHECK(y.scalar_type() == at::kFloat);
      return y;
    };
    check_on_gpu({x, weight}, logits);
    // The gradient of x in bf16 is rounded once.
    check_on_gpu({x.to(at::kBFloat16), weight}, logits, 1.0 / (1 << 7));
  }
}

TEST_CASE("rope on a GPU equals the CPU's", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  const Tensor angle = at::rand({50, 8}), position = at::arange(33, at::kInt);
  const Tensor x = at::randn({33, 64});  // four heads, of which the last is a value
  check_on_gpu({x}, [&](const Tensors& in) {
    const auto device = in[0].device();
    const Tensor c = angle.cos().to(device), s = angle.sin().to(device);
    const Tensor places = position.to(device);
    const Tensor y = rope(in[0], c, s, places, 3, 16);
    const Tensor in_place = in[0].detach().clone();
    rope_(in_place, c, s, places, 3, 16);
    CHECK(at::equal(in_place.cpu(), y.detach().cpu()));
    const Tensor heads = in[0].detach().view({33, 4, 16});
    return y + rope_backward(heads.narrow(1, 0, 2), heads.narrow(1, 2, 1), heads.narrow(1, 3, 1), c,
                             s, places);
  });
}

TEST_CASE("rows go to experts' segments and back on a GPU as on the CPU", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  const auto plan = random_segments(33, 4, 2, 9).plan;
  const int64_t rows = plan.rows.sum().item<int64_t>();
  // x to rows in the plan's order, and back by the weight of each, added to a residual or not.
  const auto by_plan = [&](const Tensors& in) {
    const auto used = [&](const Tensor& list) {
      return list.narrow(0, 0, rows).to(in[0].device());
    };
    const auto permutation = make_permutation(used(plan.token), used(plan.choice), 33, 4);
    const Tensor permuted = permute(in[0], permutation);
    return in.size() == 3 ? unpermute(permuted, permutation, in[1], in[2])
                          : unpermute(permuted, permutation, in[1]);
  };
  const Tensors inputs = {at::randn({33, 20}), at::randn({rows})};
  check_on_gpu(inputs, by_plan);
  check_on_gpu({inputs[0], inputs[1], at::randn({33, 20})}, by_plan);
  check_on_gpu(inputs, [&](const Tensors& in) {  // in segments, which only a GPU has
    const auto device = in[0].device();
    if (device.is_cpu()) {
      return by_plan(in);
    }
    const auto segmented = segment_rows(plan.token.to(device), plan.expert.to(device),
                                        plan.choice.to(device), plan.rows.to(device), 33, 4);
    const Tensor weight = at::zeros({segmented.permutation.token.size(0)}, in[1].options())
                              .index_copy(0, segmented.row_of_plan.narrow(0, 0, rows), in[1]);
    return unpermute(permute(in[0], segmented.permutation), segmented.permutation, weight);
  });
  // A permutation by an index, whose gradient is the other way.
  const Tensor index = at::tensor({4, 0, 2}, at::kLong);
  check_on_gpu({at::randn({5, 20})}, [&](const Tensors& in) {
    const auto permutation = make_permutation(index.to(in[0].device()), 5);
    return unpermute(permute(in[0], permutation), permutation);
  });
}

TEST_CASE("a product in bf16 is added to f32 without memory of its own", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const Tensor left = at::randn({1024, 5}).to(at::kBFloat16);
  const Tensor right = at::randn({5, 1024}).to(at::kBFloat16), start = at::randn({1024, 1024});
  const Tensor a = left.to(kGpu), b = right.to(kGpu);
  Tensor out = start.to(kGpu);
  at::mm(a.narrow(0, 0, 1), b, at::kFloat);  // libraries take what they need
  const uint64_t before = gpu_peak_bytes(0);
  matmul_out(out, a, b, at::kBFloat16, /*accumulate=*/true);
  CHECK(gpu_peak_bytes(0) < before + out.nbytes() / 2);
  // Five products of order one and a sum, in f32.
  const Tensor expected = start.to(at::kDouble) + left.to(at::kDouble).mm(right.to(at::kDouble));
  CHECK(at::allclose(out.cpu().to(at::kDouble), expected, 1e-6, 1e-5));
}

TEST_CASE("a GPU rounds stochastically as the CPU does", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(1);
  for (const int64_t count : {0, 1, 31, 33, 1000}) {
    const Tensor in = at::randn({count}), expected = at::empty({count}, at::kBFloat16);
    const Tensor there = in.to(kGpu), out = at::empty_like(there, at::kBFloat16);
    for (const int64_t first : {int64_t{5}, (int64_t{1} << 32) - 40}) {
      stochastic_round(in, expected, 0x1234567887654321, first);
      stochastic_round(there, out, 0x1234567887654321, first);
      CHECK(at::equal(out.cpu(), expected));
    }
  }
}

// TF32, if a run allows it, does not affect the choice of experts. The emulated GPU has no TF32:
// the test reads LibTorch's switch at each product (tests/support/emulated_cuda).

// For each product of f32 matrices since the start of a test: true if it could be in TF32.
std::vector<bool>& allowed() {
  static std::vector<bool> products;
  return products;
}

Tensor& record_product(const Tensor& left, const Tensor& right, Tensor& out) {
  allowed().push_back(at::globalContext().allowTF32CuBLAS());
  return out.copy_(at::mm(left.cpu(), right.cpu()));
}

// Puts record_product() in the place of the emulated GPU's products, and allows TF32.
class Tf32 {
 public:
  Tf32() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__) {
    library_.impl("mm.out", &record_product);
    at::globalContext().setAllowTF32CuBLAS(true);
    allowed().clear();
  }
  ~Tf32() { at::globalContext().setAllowTF32CuBLAS(false); }
  Tf32(const Tf32&) = delete;
  Tf32& operator=(const Tf32&) = delete;

 private:
  torch::Library library_;
};

Tensor leaf(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::randn(shape).to(kGpu).to(type).requires_grad_(true);
}

TEST_CASE("products take TF32 where it is allowed, but not those of router logits and gradients",
          "[kernels][gpu]") {
  if (!is_emulated()) {
    MOE_SKIP("looks into an emulated GPU");
  }
  at::manual_seed(1);
  const Tf32 on;
  for (const int64_t experts : {8, 96}) {  // up to 64 by our own kernels, more by LibTorch
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor x = leaf({24, 16}, type), router = leaf({experts, 16});
      linear_in_f32(x, router).square().sum().backward();
    }
  }
  CHECK(allowed() == std::vector<bool>(6, false));  // of both types: one forward and two backward
  CHECK(at::globalContext().allowTF32CuBLAS());
  allowed().clear();
  moe::kernels::linear(leaf({24, 16}), leaf({96, 16})).square().sum().backward();
  CHECK(allowed() == std::vector<bool>(3, true));
}

}  // namespace
