// What is measured on a GPU is what runs there: weights that keep their bf16 copies, parts by the
// GPU's clock. In a build without CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <atomic>
#include <numeric>

#include "core/bench/gemm.h"
#include "core/bench/layer.h"
#include "core/bench/train.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

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

TEST_CASE("bench train makes the experts' products as it is told", "[bench][gpu]") {
  MOE_NEED_GPU();
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {.hidden = 32});
  test::write_mixture(dir / "dense", dir / "moe", {.router = "top1", .experts = 4});
  bench::TrainBenchSettings settings;
  settings.model = (dir / "moe").string();
  settings.precision = model::Precision::kBf16;
  settings.device = kGpu;
  settings.graph = true;
  settings.grouped_gemm = kernels::GroupedGemm::kLoop;
  CHECK(test::user_error_of([&] { bench::bench_train(settings); }) ==
        "--graph records launches that never wait for the host, and --expert-products loop waits "
        "for the tokens per expert; leave one of them out");
  CHECK(bench::to_json(settings)["expert_products"] == "loop");
}

TEST_CASE("bench layer records a forward whose weights lie in bf16", "[bench][gpu]") {
  MOE_NEED_GPU();
  bench::LayerSettings settings;
  settings.tokens = 32;
  settings.width = 16;
  settings.inner = 24;
  settings.experts = 4;
  settings.repeats = 2;
  settings.times_layer = false;
  settings.device = kGpu;
  settings.bf16 = settings.graph = true;
  const Conversions of_gate_up({4, 48, 16});
  const auto report = bench::bench_layer(settings, route::parse_router("top1"));
  CHECK(Conversions::count() == 1);  // before anything is timed
  CHECK(report.graph.median_s > 0);
}

TEST_CASE("bench gemm times the experts' products both ways at a model's shapes", "[bench][gpu]") {
  MOE_NEED_GPU();
  model::ModelConfig config;
  config.hidden_size = 16;
  CHECK(bench::expert_products(config, 64).empty());  // dense
  config.moe.emplace();
  config.moe->experts = 4;
  config.moe->expert_width = 24;
  config.moe->layers = {0};
  const auto all = bench::expert_products(config, 64);
  REQUIRE(all.size() == 2);
  const auto options = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  for (const auto& products : all) {
    const OrderedJson json =
        bench::to_json(bench::bench_expert_products(products, /*repeats=*/2, options));
    CAPTURE(json.dump());
    CHECK((json["experts"] == 4 && json["rows"] == 16));
    CHECK((json["k"] == (products.name == "expert up" ? 16 : 24) &&
           json["n"] == (products.name == "expert up" ? 48 : 16)));
    for (const char* form : {"y", "dx", "dw"}) {
      for (const char* way : {"loop", "grouped"}) {
        CHECK(json[form][way]["best_ms"].get<double>() > 0);
        CHECK(json[form][std::string(way) + "_gflops"].get<double>() > 0);
      }
    }
  }
}
