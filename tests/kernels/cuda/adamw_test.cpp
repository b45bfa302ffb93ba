#include "kernels/ops/adamw.h"

#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

TEST_CASE("the adamw kernel equals LibTorch's fused kernel in double over three updates", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (const int64_t count : {0, 1, 31, 33, 1024, 1030}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool has_weight : {true, false}) {  // and a scale of the gradient
        CAPTURE(count, static_cast<int>(type), has_weight);
        const Tensor gradient = at::randn({count}).to(type), start = at::randn({count});
        const Tensor start_mean = at::randn({count}) * 0.1, start_square = at::rand({count}) * 0.01;
        const Tensor there = to_gpu(gradient), master = to_gpu(start), mean = to_gpu(start_mean);
        const Tensor square = to_gpu(start_square), weight = poisoned({count}, at::kBFloat16);
        const Tensor scale = to_gpu(at::full({1}, 0.3F));
        const auto wide = [](const Tensor& x) { return std::vector{x.to(at::kDouble)}; };
        auto expected = wide(start), expected_mean = wide(start_mean);
        auto expected_square = wide(start_square);
        AdamWSettings settings{1e-2, 0.9, 0.999, 1e-8, 0.1, 1};
        for (settings.t = 1; settings.t <= 3; ++settings.t) {
          adamw_cuda({there.const_data_ptr(), type == at::kBFloat16, master.data_ptr<float>(),
                      mean.data_ptr<float>(), square.data_ptr<float>(),
                      has_weight ? weight.data_ptr() : nullptr,
                      has_weight ? scale.const_data_ptr<float>() : nullptr, count},
                     settings, stream_of(master));
          at::_fused_adamw_(
              expected, std::vector{gradient.to(at::kDouble) * (has_weight ? 0.3F : 1.0F)},
              expected_mean, expected_square, {}, {at::full({}, static_cast<float>(settings.t))},
              settings.lr, settings.beta1, settings.beta2, settings.weight_decay, settings.eps,
              /*amsgrad=*/false, /*maximize=*/false);
        }
        // About 8 roundings an update, of 2^-24 of numbers up to 4; a step is lr = 1e-2 times a
        // ratio that can reach 30 while v is young.
        const auto close = [](const Tensor& actual, const std::vector<Tensor>& truth, double most) {
          return at::allclose(actual.cpu().to(at::kDouble), truth[0], 1e-6, most);
        };
        CHECK(close(mean, expected_mean, 1e-7));
        CHECK(close(square, expected_square, 1e-9));
        CHECK(close(master, expected, 2e-6));
        if (has_weight) {
          CHECK(at::equal(weight.cpu(), master.cpu().to(at::kBFloat16)));
        }
      }
    }
  }
}

TEST_CASE("adamw_ updates tensors as its kernel does and refuses those that do not fit", "[gpu]") {
  MOE_NEED_GPU();
  const auto gpu = at::TensorOptions(kGpu);
  const Tensor wide = at::zeros({4}, gpu), narrow = at::zeros({4}, gpu.dtype(at::kBFloat16));
  const AdamWSettings settings{.lr = 0.25};
  const Tensor master = at::ones({4}, gpu), weight = narrow.clone();
  adamw_(at::ones_like(narrow), master, wide.clone(), wide.clone(), weight, settings,
         at::full({1}, 0.5F, gpu));  // the first step is lr in the gradient's direction
  CHECK(at::allclose(master.cpu(), at::full({4}, 0.75F), 1e-6, 1e-6));
  CHECK(at::equal(weight.cpu(), at::full({4}, 0.75F).to(at::kBFloat16)));
  CHECK_THROWS(adamw_(narrow, narrow, wide, wide, narrow, settings, {}));
  CHECK_THROWS(adamw_(narrow, at::zeros({5}, gpu), wide, wide, narrow, settings, {}));
  CHECK_THROWS(adamw_(narrow, wide, wide, wide, wide, settings, {}));
}
