#include "kernels/ops/adamw.h"

#include "tests/kernels/reference/adamw.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::kernels::AdamWArgs;
using moe::kernels::AdamWSettings;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

struct Parameter {
  Tensor gradient, master, mean, square, weight, scale;

  AdamWArgs args() const {
    return {gradient.const_data_ptr(),
            gradient.scalar_type() == at::kBFloat16,
            master.data_ptr<float>(),
            mean.data_ptr<float>(),
            square.data_ptr<float>(),
            weight.defined() ? weight.data_ptr() : nullptr,
            scale.defined() ? scale.data_ptr<float>() : nullptr,
            master.numel()};
  }
};

Parameter random_parameter(int64_t count, at::ScalarType gradient, bool has_weight, bool scaled) {
  return {at::randn({count}).to(gradient),
          at::randn({count}),
          at::randn({count}) * 0.1,
          at::rand({count}) * 0.01,
          has_weight ? at::zeros({count}, at::kBFloat16) : Tensor(),
          scaled ? at::full({1}, 0.3F) : Tensor()};
}

Parameter copied_to_gpu(const Parameter& from) {
  return {to_gpu(from.gradient),
          to_gpu(from.master),
          to_gpu(from.mean),
          to_gpu(from.square),
          from.weight.defined() ? poisoned(from.weight.sizes(), at::kBFloat16) : Tensor(),
          from.scale.defined() ? to_gpu(from.scale) : Tensor()};
}

}  // namespace

TEST_CASE("the adamw kernel equals plain loops in double over three updates", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (const int64_t count : {0, 1, 31, 33, 1024, 1030}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool has_weight : {true, false}) {
        CAPTURE(count, has_weight);
        const Parameter expected = random_parameter(count, type, has_weight, has_weight);
        const Parameter actual = copied_to_gpu(expected);
        AdamWSettings settings{1e-2, 0.9, 0.999, 1e-8, 0.1, 1};
        for (settings.t = 1; settings.t <= 3; ++settings.t) {
          moe::test::adamw_reference(expected.args(), settings);
          moe::kernels::adamw_cuda(actual.args(), settings, stream_of(actual.master));
        }
        // About 8 roundings an update, of 2^-24 of numbers up to 4; a step is lr = 1e-2 times a
        // ratio that can reach 30 while v is young.
        CHECK(at::allclose(actual.mean.cpu(), expected.mean, 1e-6, 1e-7));
        CHECK(at::allclose(actual.square.cpu(), expected.square, 1e-6, 1e-9));
        CHECK(at::allclose(actual.master.cpu(), expected.master, 1e-6, 2e-6));
        if (has_weight) {
          CHECK(at::equal(actual.weight.cpu(), actual.master.cpu().to(at::kBFloat16)));
        }
      }
    }
  }
}

TEST_CASE("adamw_ refuses tensors that do not belong together", "[kernels][gpu]") {
  MOE_NEED_GPU();
  using moe::kernels::adamw_;
  const auto gpu = at::TensorOptions(moe::test::kGpu);
  const Tensor wide = at::zeros({4}, gpu), narrow = at::zeros({4}, gpu.dtype(at::kBFloat16));
  const AdamWSettings settings;
  adamw_(narrow, wide.clone(), wide.clone(), wide.clone(), narrow.clone(), settings, {});
  CHECK_THROWS(adamw_(narrow, narrow, wide, wide, narrow, settings, {}));
  CHECK_THROWS(adamw_(narrow, at::zeros({5}, gpu), wide, wide, narrow, settings, {}));
  CHECK_THROWS(adamw_(narrow, wide, wide, wide, wide, settings, {}));
}
