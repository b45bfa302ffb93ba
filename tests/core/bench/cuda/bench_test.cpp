// What is measured on a GPU is what runs there: weights that keep their bf16 copies, parts by the
// GPU's clock. In a build without CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <atomic>
#include <numeric>

#include "core/bench/layer.h"
#include "core/bench/train.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using test::kGpu;

namespace {

// How many f32 tensors of one shape, which nothing but a weight has, LibTorch converted while this
// lives, in any thread.
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
  bench::TrainBenchSettings settings;
  settings.model = (dir / "moe").string();
  settings.precision = model::Precision::kBf16;
  settings.rows = 2;
  settings.length = 16;
  settings.warmup = settings.repeats = settings.profiled = 1;
  settings.device = kGpu;
  const Conversions of_head({101, 32});
  const bench::TrainReport report = bench::bench_train(settings);
  CHECK(Conversions::count() == 0);  // three steps rounded it three times without a copy
  const double parts_s =
      std::accumulate(report.parts_s.begin(), report.parts_s.end(), 0.0,
                      [](double sum, const auto& part) { return sum + part.second; });
  CHECK(report.parts_s.count("optimizer") == 1);
  if (test::is_emulated()) {  // whose events run a thousand times as fast as the host's clock
    CHECK(parts_s > 10 * report.step.best_s);
  }
}
