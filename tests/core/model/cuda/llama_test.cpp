// A model on a GPU against itself on the CPU: logits, gradients, generation, parts of a step. In a
// build without CUDA the GPU is emulated (tests/support/emulated_cuda), and a host read of its
// memory faults.

#include "core/model/llama/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>

#include "core/model/llama/generate.h"
#include "core/model/llama/timeline.h"
#include "kernels/ops/device.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"

using namespace moe;
using at::Tensor;
using model::Llama;
using model::Precision;
using model::Storage;
using test::kGpu;

namespace {

// The tiny dense folder, or its mixture of experts that differ.
class Folder {
 public:
  explicit Folder(const std::string& router, const test::TinyCheckpoint& options = {.std = 0.3},
                  int64_t experts = 4) {
    test::write_tiny_checkpoint(dir_ / "dense", options);
    if (!router.empty()) {
      test::write_mixture(dir_ / "dense", dir_ / "moe",
                          {.router = router, .experts = experts, .router_std = 1.0, .ep_ranks = 2});
      name_ = "moe";
    }
  }

  // A folder of another architecture.
  explicit Folder(const test::ForeignCheckpoint& options) {
    test::write_foreign_checkpoint(dir_ / "dense", options);
  }

  Llama load(at::Device device, const model::ComputeOptions& compute = {}) const {
    Llama model = Llama::load(io::Checkpoint(dir_ / name_), {}, device);
    model.set_compute(compute);
    model.require_gradients();
    return model;
  }

 private:
  test::TempDir dir_;
  std::string name_ = "dense";
};

const std::vector<int64_t> kLengths = {1, 7, 7, 31, 2, 33};

model::Packed pack() {
  const int64_t tokens = c10::sum_integers(kLengths);
  at::manual_seed(4);
  return {at::randint(0, 64, {tokens}, at::kLong), kLengths};
}

// Logits, and the gradients of all weights, on the host.
std::vector<Tensor> results(const Llama& model) {
  const auto routing = model.default_routing();
  const auto forward = model.forward(pack(), routing);
  const Tensor logits = model.head(forward.hidden);
  at::manual_seed(5);
  Tensor loss = (logits * at::randn(logits.sizes()).to(logits.device())).sum();
  if (forward.losses.load_balance.defined()) {
    loss = loss + forward.losses.load_balance;
  }
  loss.backward();
  std::vector<Tensor> all{logits.detach().cpu()};
  for (const auto& parameter : model.parameters()) {
    const Tensor& gradient = parameter.tensor.grad();
    all.push_back(gradient.defined() ? gradient.cpu() : Tensor());
  }
  return all;
}

double distance(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-6)).item<double>();
}

void check_close(const std::vector<Tensor>& gpu, const std::vector<Tensor>& host, double most) {
  REQUIRE(gpu.size() == host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    INFO("tensor " << i);
    REQUIRE(gpu[i].defined() == host[i].defined());
    if (host[i].defined()) {
      CHECK(distance(gpu[i], host[i]) < most);
    }
  }
}

// f32: sums of at most 81 terms in another order, 3 layers and their backward deep: 2^-24 * 81 *
// 6 = 3e-5 at worst. Weights are of order one, so nothing is amplified but by softmaxes.
constexpr double kF32 = 1e-4;
// bf16: both sides round operands to 8 bits, and intermediate values at different places: 2^-9 a
// rounding, some 50 successive ones as a root of squares, 0.014. Four times that, since the
// gradient of a router is a difference between experts.
constexpr double kBf16 = 0.056;
constexpr model::ComputeOptions kBf16Compute{model::Precision::kBf16};

void check_gpu_equals_cpu(const Folder& folder, bool is_bf16 = false) {
  const model::ComputeOptions compute = is_bf16 ? kBf16Compute : model::ComputeOptions{};
  check_close(results(folder.load(kGpu, compute)), results(folder.load(at::kCPU, compute)),
              is_bf16 ? kBf16 : kF32);
}

struct Measured {
  std::map<std::string, double> parts_s;
  double host_s = 0, sum_s = 0;
};

// Two forwards and backwards of a small mixture.
Measured measure(at::Device device) {
  const Llama model = Folder("top2:cf=inf").load(device);
  const auto work = [&] {
    for (int i = 0; i < 2; ++i) {
      const model::Packed pack{at::arange(40, at::kLong), {17, 23}};
      model.head(model.forward(pack, model.default_routing()).hidden).sum().backward();
    }
  };
  Measured measured;
  const auto begin = std::chrono::steady_clock::now();
  measured.parts_s = model::part_seconds(work, device);
  measured.host_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const auto& [name, seconds] : measured.parts_s) {
    CHECK(seconds > 0);
    measured.sum_s += seconds;
  }
  return measured;
}

Tensor head_of(const Llama& model) {
  Tensor head;
  model.with_head([&](const Tensor& weight) { head = weight; });
  return head;
}

model::Packed three_sequences() {
  at::manual_seed(4);
  return {at::randint(0, 64, {41}, at::kLong), {1, 7, 33}};
}

Tensor logits(const Llama& model) {
  const at::NoGradGuard no_gradients;
  return model.head(model.forward(three_sequences(), model.default_routing()).hidden).cpu();
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

TEST_CASE("logits and gradients on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  for (const std::string router :
       {"", "top1+ir+fr", "top2:cf=inf", "top2+ir+fr:cf=0.6", "topp:0.6", "relu:k=1"}) {
    INFO("router '" << router << "'");
    check_gpu_equals_cpu(Folder(router));
  }
}

TEST_CASE("other architectures on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  using test::Foreign;
  for (const auto kind : {Foreign::kQwen2, Foreign::kQwen3}) {  // biases, head norms
    CAPTURE(static_cast<int>(kind));
    const Folder folder({.kind = kind, .dense_layers = {}, .tiny = {.hidden = 32, .std = 0.2}});
    check_gpu_equals_cpu(folder, /*is_bf16=*/kind == Foreign::kQwen3);
  }
  for (const int64_t experts : {4, 2}) {  // with a shared expert
    CAPTURE(experts);
    const Folder folder({.kind = Foreign::kQwen2Moe,
                         .experts = experts,
                         .dense_layers = {1},
                         .shared_width = 24,
                         .tiny = {.hidden = 32, .std = 0.2}});
    // With two experts top-2 takes both, so that rounding to bf16 changes no choice.
    check_gpu_equals_cpu(folder, /*is_bf16=*/experts == 2);
  }
}

TEST_CASE("bf16 on a GPU equals bf16 on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  for (const std::string router : {"", "top2:cf=inf"}) {
    // The flash kernel needs heads of 8. Two experts as above: attention rounds at different places
    // on a CPU with bf16 products, which changed the choice of a token among four.
    const test::TinyCheckpoint shape{.hidden = 32, .kv_heads = router.empty() ? 1 : 4, .std = 0.2};
    check_gpu_equals_cpu(Folder(router, shape, /*experts=*/2), /*is_bf16=*/true);
  }
}

TEST_CASE("recomputation and adapters on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  const Folder folder("top1+ir+fr");
  const auto run = [&](at::Device device, const model::ComputeOptions& compute) {
    Llama model = folder.load(device, compute);
    model.add_lora({4, 8, {"attention", "ffn"}}, 3);
    model.require_gradients();
    return results(model);
  };
  const auto host = run(at::kCPU, {});
  for (const auto recompute : {model::Recompute::kFeedForward, model::Recompute::kLayer}) {
    check_close(run(kGpu, {model::Precision::kF32, recompute}), host, kF32);
  }
}

TEST_CASE("sequences that continue others on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  const at::NoGradGuard no_gradients;
  model::Packed tokens = pack();
  tokens.prefix_index = {-1, -1, 1, -1, 1, 3};
  const auto hidden = [&](const Llama& model) {
    return model.forward(tokens, model.default_routing()).hidden.cpu();
  };
  const Folder folder("top1:cf=inf");
  const Tensor gpu = hidden(folder.load(kGpu)), host = hidden(folder.load(at::kCPU));
  int64_t first = 0;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    INFO("sequence " << i);
    const int64_t length = kLengths[i];
    CHECK(distance(gpu.narrow(0, first, length), host.narrow(0, first, length)) < kF32);
    first += length;
  }
  const Folder dense("", {.hidden = 32, .std = 0.2});  // heads of 8
  CHECK(distance(hidden(dense.load(kGpu, kBf16Compute)),
                 hidden(dense.load(at::kCPU, kBf16Compute))) < kBf16);
}

TEST_CASE("a model generates the same text on a GPU and on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  for (const std::string router : {"top2:cf=inf", "relu:k=1"}) {
    const Folder folder(router);
    const auto text = [&](at::Device device, double temperature) {
      const Llama model = folder.load(device);
      model::GenerateSettings settings;
      settings.max_tokens = 8;
      settings.temperature = temperature;
      settings.top_p = 0.9;
      return model::generate(model, model.default_routing(), {1, 5, 9}, settings);
    };
    CHECK((text(kGpu, 0) == text(at::kCPU, 0)));
    CHECK((text(kGpu, 0.7) == text(at::kCPU, 0.7)));
  }
}

// An emulated GPU has events a thousand times as fast as the host's clock
// (tests/support/emulated_cuda/device.cpp).
TEST_CASE("a step has the same parts on a GPU and on the CPU, timed by GPU events", "[gpu]") {
  MOE_NEED_GPU();
  const Measured host = measure(at::kCPU), gpu = measure(kGpu);
  for (const auto& [name, seconds] : host.parts_s) {
    CAPTURE(name);
    CHECK(gpu.parts_s.count(name) == 1);
  }
  CHECK(host.sum_s < host.host_s);
  if (test::is_emulated()) {
    CHECK(gpu.sum_s > 10 * gpu.host_s);
    CHECK(gpu.sum_s < 1000 * gpu.host_s);  // none is counted twice
  } else {
    CHECK(gpu.sum_s < gpu.host_s);
  }
}

// Models for inference on a GPU: the dtype of their matrices there, and the same values as with
// matrices in f32. In a build without CUDA the GPU is emulated (tests/support/emulated_cuda).

// First in its process: peaks only grow.
TEST_CASE("a model for inference takes no more GPU memory than its 16-bit folder", "[gpu]") {
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

TEST_CASE("matrices in their stored type give the logits of matrices in f32", "[gpu]") {
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

TEST_CASE("a tied embedding is not rounded, since it is looked up too", "[gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "m", {.hidden = 32, .tied = true, .std = 0.2});
  check_kept(dir / "m", Precision::kBf16, at::kFloat);
}
