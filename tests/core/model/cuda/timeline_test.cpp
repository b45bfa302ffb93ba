// The times of the parts of a step on a GPU are measured by its events. In a build without CUDA the
// GPU is emulated, with events a thousand times as fast as the host's clock
// (tests/support/emulated_cuda/device.cpp).

#include "core/model/llama/timeline.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <chrono>
#include <numeric>

#include "core/model/llama/llama.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "tests/support/gpu.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using at::Tensor;
using test::kGpu;

namespace {

struct Measured {
  std::map<std::string, double> parts_s;
  double host_s = 0, sum_s = 0;
};

// Two forwards and backwards of a small mixture.
Measured measure(at::Device device) {
  const test::TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {.std = 0.3});
  test::write_mixture(dir / "dense", dir / "moe", {.router = "top2:cf=inf", .experts = 4});
  model::Llama model = model::Llama::load(io::Checkpoint(dir / "moe"), {}, device);
  model.require_gradients();
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

}  // namespace

TEST_CASE("a step has the same parts on a GPU and on the CPU, timed by GPU events",
          "[model][gpu]") {
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

TEST_CASE("the experts' forward is a part with counts on the device too", "[model][gpu]") {
  MOE_NEED_GPU();
  const auto on_gpu = [](at::IntArrayRef shape) { return at::ones(shape).to(kGpu); };
  const Tensor ends = at::tensor({3, 5}, at::kInt).to(kGpu), rows = on_gpu({6, 8});
  const auto parts = model::part_seconds(
      [&] {
        kernels::grouped_swiglu(rows, on_gpu({2, 16, 8}), on_gpu({2, 8, 8}), ends);
        kernels::grouped_linear(rows, on_gpu({2, 8, 8}), ends);
      },
      kGpu);
  CHECK((parts.size() == 1 && parts.count("experts") == 1));
}

TEST_CASE("a nested part counts for the outer one", "[model][gpu]") {
  MOE_NEED_GPU();
  const Tensor x = at::ones({8}, at::TensorOptions(kGpu));
  const auto parts = model::part_seconds(
      [&] {
        RECORD_USER_SCOPE("outer");
        {
          RECORD_USER_SCOPE("inner");
          x + x;
        }
      },
      kGpu);
  CHECK((parts.size() == 1 && parts.count("outer") == 1));
}
