// Benchmarks on a GPU time parts by the GPU's clock. A build without CUDA uses an emulated GPU
// (tests/support/emulated_cuda).

#include "core/bench/bench.h"

#include "kernels/ops/device.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"

using namespace moe;
using test::kGpu;

TEST_CASE("bench train times parts on the GPU", "[bench][gpu]") {
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
  const OrderedJson report = bench::bench_train(settings, kGpu);
  CHECK(report["parts_ms"]["optimizer"] > 0);
  double parts_ms = 0;
  for (const OrderedJson& ms : report["parts_ms"]) {
    parts_ms += ms.get<double>();
  }
  if (test::is_emulated()) {  // whose events run a thousand times as fast as the host's clock
    CHECK(parts_ms > 10 * report["step"]["best_ms"].get<double>());
  }
}

TEST_CASE("bench layer on a GPU reports time and memory of each router", "[bench][gpu]") {
  MOE_NEED_GPU();
  bench::LayerSettings settings;
  settings.routers = {"top1", "topp:0.4"};
  settings.tokens = 32;
  settings.width = 16;
  settings.inner = 24;
  settings.experts = 4;
  settings.repeats = 2;
  settings.use_bf16 = true;
  const OrderedJson report = bench::bench_layer(settings, kGpu);
  REQUIRE(report["layers"].size() == 2);
  for (const OrderedJson& layer : report["layers"]) {
    CHECK(layer["layer"]["share_of_roof"] > 0);
    CHECK(layer["parts_ms"]["experts"] > 0);
    CHECK(layer["peak_bytes"].get<uint64_t>() == kernels::gpu_peak_bytes(0));
  }
}
