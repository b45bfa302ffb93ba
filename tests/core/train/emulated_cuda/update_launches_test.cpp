// Counts the launches of an update on the emulated GPU, as tests/core/model/emulated_cuda does for
// a layer.

#include "core/train/step/updater.h"
#include "tests/support/emulated_cuda/emulator.h"
#include "tests/support/gpu.h"

using at::Tensor;
using emulated::HostCalls;
using namespace moe;

TEST_CASE("an update is six launches a parameter and one read", "[train][emulator]") {
  // Matrices and norms as models have them, of whole pieces of 1024 numbers.
  constexpr int64_t kParameters = 6;
  at::manual_seed(1);
  std::vector<model::NamedParameter> parameters;
  for (int64_t i = 0; i < kParameters; ++i) {
    const Tensor values = i % 3 == 0 ? at::randn({1024}) : at::randn({32, 64});
    parameters.push_back({"parameter." + std::to_string(i), values.to(test::kGpu)});
    parameters.back().tensor.mutable_grad() = at::randn_like(values).to(test::kGpu);
  }
  train::Updater updater(parameters, {}, /*seed=*/0, /*world=*/nullptr);
  emulated::take_host_calls();
  const double norm = updater.gradient_norm();
  const HostCalls of_norm = emulated::take_host_calls();
  updater.step(norm, /*clip=*/1, /*lr=*/1e-3);
  const HostCalls of_step = emulated::take_host_calls();
  CHECK(norm > 1);                                                 // it is clipped
  CHECK(HostCalls::sum(of_norm.launches) <= 5 * kParameters + 1);  // and the sum's zero
  // The clip is told once for what is decayed and once for what is not.
  CHECK(of_step.launches ==
        std::map<std::string, int64_t>{{"kernel", kParameters}, {"aten::fill_", 2}});
  CHECK(HostCalls::sum(of_norm.reads) == 1);
  CHECK(of_step.reads.empty());
}
