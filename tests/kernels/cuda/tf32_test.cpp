// TF32, where a run allows it, does not reach what decides between experts. The emulated GPU has no
// TF32: what is looked at is LibTorch's switch at each product (tests/support/emulated_cuda).

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/library.h>

#include "kernels/ops/linear.h"
#include "tests/support/gpu.h"

using namespace moe;
using at::Tensor;
using test::kGpu;

namespace {

// Whether each product of f32 matrices since the start of a test could be in TF32.
std::vector<bool>& allowed() {
  static std::vector<bool> products;
  return products;
}

Tensor& product_out(const Tensor& left, const Tensor& right, Tensor& out) {
  allowed().push_back(at::globalContext().allowTF32CuBLAS());
  return out.copy_(at::mm(left.cpu(), right.cpu()));
}

// Puts product_out() in the place of the emulated GPU's products, and allows TF32.
class Tf32 {
 public:
  Tf32() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__) {
    library_.impl("mm.out", &product_out);
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

}  // namespace

TEST_CASE("router logits and their gradients are in f32 where TF32 is allowed", "[kernels][gpu]") {
  if (!test::is_emulated()) {
    MOE_SKIP("looks into an emulated GPU");
  }
  at::manual_seed(1);
  const Tf32 on;
  for (const int64_t experts : {8, 96}) {  // up to 64 by kernels of ours, beyond by LibTorch
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor x = leaf({24, 16}, type), router = leaf({experts, 16});
      kernels::linear_in_f32(x, router).square().sum().backward();
    }
  }
  CHECK(allowed().size() == 2 * 3);  // of both types: one forward and two backward
  for (const bool is_allowed : allowed()) {
    CHECK(!is_allowed);
  }
  CHECK(at::globalContext().allowTF32CuBLAS());
}

TEST_CASE("all other products take TF32 where it is allowed", "[kernels][gpu]") {
  if (!test::is_emulated()) {
    MOE_SKIP("looks into an emulated GPU");
  }
  at::manual_seed(2);
  const Tf32 on;
  kernels::linear(leaf({24, 16}), leaf({96, 16})).square().sum().backward();
  CHECK(allowed() == std::vector<bool>(3, true));
}
