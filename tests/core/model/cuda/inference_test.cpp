// Models for inference on a GPU: the dtype of their matrices there, and the same values as with
// matrices in f32. In a build without CUDA the GPU is emulated (tests/support/emulated_cuda).

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "core/model/llama/llama.h"
#include "kernels/ops/device.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using at::Tensor;
using model::Llama;
using model::Precision;
using model::Storage;
using test::kGpu;

namespace {

Tensor head_of(const Llama& model) {
  Tensor head;
  model.with_head([&](const Tensor& weight) { head = weight; });
  return head;
}

model::Packed pack() {
  at::manual_seed(4);
  return {at::randint(0, 64, {41}, at::kLong), {1, 7, 33}};
}

Tensor logits(const Llama& model) {
  const at::NoGradGuard no_gradients;
  return model.head(model.forward(pack(), model.default_routing()).hidden).cpu();
}

// Both multiply the same operands: equal bits in bf16 on the emulated GPU. A GPU's library may sum
// in another order at another address, and in f32 only matrices stored in f32 of up to 64 rows use
// our kernel (kernels/ops/linear.cpp): 2^-24 a term, of at most 32 terms, 3 layers deep.
void check_same(const Tensor& a, const Tensor& b, Precision precision) {
  const bool is_exact = test::is_emulated() && precision == Precision::kBf16;
  const double most = is_exact ? 0 : 1e-5;
  CHECK(((a - b).norm() / b.norm()).item<double>() <= most);
}

void check_kept(const std::filesystem::path& folder, Precision precision, at::ScalarType head) {
  const io::Checkpoint checkpoint(folder);
  const Llama wide = Llama::load(checkpoint, {}, kGpu, Storage::kF32, {precision});
  const Llama kept = Llama::load(checkpoint, {}, kGpu, Storage::kStored, {precision});
  CHECK(head_of(wide).scalar_type() == at::kFloat);
  CHECK(head_of(kept).scalar_type() == head);
  CHECK(head_of(kept).device() == kGpu);
  check_same(logits(kept), logits(wide), precision);
}

}  // namespace

// First in its process: peaks only grow.
TEST_CASE("a model for inference takes no more GPU memory than its 16-bit folder", "[model][gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {.hidden = 128,
                                              .intermediate = 256,
                                              .heads = 8,
                                              .kv_heads = 8,
                                              .vocab = 256,
                                              .dtype = io::DType::kBF16});
  test::write_mixture(dir / "dense", dir / "moe", {.router = "top1", .experts = 8});
  const io::Checkpoint checkpoint(dir / "moe");
  uint64_t stored = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    stored += static_cast<uint64_t>(tensor.bytes());
  }
  const auto peak_of = [&](Storage storage, Precision precision) {
    Llama::load(checkpoint, {}, kGpu, storage, {precision});
    return kernels::gpu_peak_bytes(0);
  };
  // Vectors are widened to f32, and the allocator rounds each tensor up.
  const uint64_t most = stored + stored / 4;
  CHECK(peak_of(Storage::kStored, Precision::kBf16) < most);
  CHECK(peak_of(Storage::kStored, Precision::kF32) < most);
  CHECK(peak_of(Storage::kF32, Precision::kBf16) > 3 * stored / 2);
}

TEST_CASE("matrices in their stored type give the logits of matrices in f32", "[model][gpu]") {
  MOE_NEED_GPU();
  struct Case {
    io::DType stored;
    at::ScalarType type;
    const char* router;
    Precision precision;
  };
  for (const auto& [stored, type, router, precision] :
       {Case{io::DType::kF32, at::kFloat, "top1+ir+fr", Precision::kF32},
        Case{io::DType::kF16, at::kHalf, "", Precision::kF32},
        Case{io::DType::kBF16, at::kBFloat16, "top2:cf=inf", Precision::kF32},
        Case{io::DType::kF32, at::kBFloat16, "", Precision::kBf16},
        Case{io::DType::kF16, at::kBFloat16, "top2:cf=inf", Precision::kBf16},
        Case{io::DType::kBF16, at::kBFloat16, "top1+ir+fr", Precision::kBf16}}) {
    const std::string name = *router == 0 ? "m" : "moe";
    CAPTURE(static_cast<int>(stored), router);
    const test::TempDir dir;
    test::write_tiny_checkpoint(dir / "m", {.hidden = 32, .dtype = stored, .std = 0.2});
    if (name == "moe") {
      test::write_mixture(dir / "m", dir / "moe",
                          {.router = router, .experts = 4, .router_std = 1.0, .ep_ranks = 2});
    }
    check_kept(dir / name, precision, type);
  }
}

TEST_CASE("a tied embedding is not rounded, since it is looked up too", "[model][gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "m", {.hidden = 32, .tied = true, .std = 0.2});
  check_kept(dir / "m", Precision::kBf16, at::kFloat);
}
