// Benchmarks on a GPU keep bf16 working copies as training does, and time parts by the GPU's clock.
// A build without CUDA uses an emulated GPU (tests/support/emulated_cuda).

#include "core/bench/bench.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <atomic>

#include "kernels/ops/device.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using test::kGpu;

namespace {

// Counts the f32 tensors of one shape that LibTorch converts to bf16 while this is alive, in any
// thread.
class Conversions {
 public:
  explicit Conversions(std::vector<int64_t> shape) {
    wanted() = std::move(shape);
    count() = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Conversions() { at::removeCallback(handle_); }
  Conversions(const Conversions&) = delete;
  Conversions& operator=(const Conversions&) = delete;

  static std::atomic<int>& count() {
    static std::atomic<int> conversions = 0;
    return conversions;
  }

 private:
  static std::vector<int64_t>& wanted() {
    static std::vector<int64_t> shape;
    return shape;
  }

  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    const auto inputs = function.inputs();
    if (std::string(function.name()) == "aten::_to_copy" && inputs[1].isInt() &&
        inputs[1].toInt() == static_cast<int64_t>(at::kBFloat16)) {
      const at::Tensor& from = inputs[0].toTensor();
      count() += from.is_cuda() && from.scalar_type() == at::kFloat && from.sizes() == wanted();
    }
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
};

}  // namespace

TEST_CASE("bench train keeps the bf16 copies that training keeps, and times parts on the GPU",
          "[bench][gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {.hidden = 32, .vocab = 101, .std = 0.2});
  test::write_mixture(dir / "dense", dir / "moe", {.router = "top1", .experts = 4});
  bench::TrainSettings settings;
  settings.model = (dir / "moe").string();
  settings.precision = model::Precision::kBf16;
  settings.rows = 2;
  settings.length = 16;
  settings.warmup = settings.repeats = 1;
  const Conversions of_head({101, 32});
  const OrderedJson report = bench::bench_train(settings, kGpu);
  CHECK(Conversions::count() == 0);  // without a copy, each step would round the head
  CHECK(report["parts_ms"]["optimizer"] > 0);
  double parts_ms = 0;
  for (const OrderedJson& ms : report["parts_ms"]) {
    parts_ms += ms.get<double>();
  }
  if (test::is_emulated()) {  // whose events run a thousand times as fast as the host's clock
    CHECK(parts_ms > 10 * report["step"]["best_ms"].get<double>());
  }
}

TEST_CASE("bench layer on a GPU does not round the expert weights", "[bench][gpu]") {
  MOE_NEED_GPU();
  bench::LayerSettings settings;
  settings.routers = {"top1", "topp:0.4"};
  settings.tokens = 32;
  settings.width = 16;
  settings.inner = 24;
  settings.experts = 4;
  settings.repeats = 2;
  settings.use_bf16 = true;
  const Conversions of_gate_up({4, 48, 16});
  const OrderedJson report = bench::bench_layer(settings, kGpu);
  CHECK(Conversions::count() == 0);
  for (const OrderedJson& layer : report["layers"]) {
    CHECK(layer["layer"]["share_of_roof"] > 0);
    CHECK(layer["parts_ms"]["experts"] > 0);
    CHECK(layer["peak_bytes"].get<uint64_t>() == kernels::gpu_peak_bytes(0));
  }
}
