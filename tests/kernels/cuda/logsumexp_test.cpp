#include "tests/kernels/reference/logsumexp.h"

#include <limits>

#include "kernels/ops/cross_entropy.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::kernels::LogSumExpArgs;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

struct Results {
  Tensor logsumexp, argmax;

  LogSumExpArgs args(const Tensor& logits) const {
    return {logits.const_data_ptr<float>(), logsumexp.data_ptr<float>(), argmax.data_ptr<int64_t>(),
            logits.size(0), logits.size(1)};
  }
};

Results on_gpu(const Tensor& logits) {
  const int64_t rows = logits.size(0);
  const Tensor there = to_gpu(logits);
  const Results results{poisoned({rows}, at::kFloat), poisoned({rows}, at::kLong)};
  moe::kernels::logsumexp_cuda(results.args(there), stream_of(there));
  return {results.logsumexp.cpu(), results.argmax.cpu()};
}

Results by_loops(const Tensor& logits) {
  const Results results{at::empty({logits.size(0)}), at::empty({logits.size(0)}, at::kLong)};
  moe::test::logsumexp_reference(results.args(logits));
  return results;
}

}  // namespace

TEST_CASE("the logsumexp kernel equals plain loops in double, as the CPU's does",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(5);
  for (const int64_t rows : {0, 1, 3}) {
    for (const int64_t vocabulary : {1, 31, 33, 64, 1001, 2052, 5000}) {
      CAPTURE(rows, vocabulary);
      const Tensor logits = at::randn({rows, vocabulary}) * 6;
      const Results expected = by_loops(logits), actual = on_gpu(logits);
      Results cpu;
      moe::kernels::logsumexp_argmax(logits, cpu.logsumexp, cpu.argmax);
      // exp to 2 units in the last place, a short sum a lane, one rounding of the result, which is
      // below 64: 64 * 2^-24 = 4e-6.
      CHECK(at::allclose(actual.logsumexp, expected.logsumexp, 1e-6, 5e-6));
      CHECK(at::allclose(cpu.logsumexp, expected.logsumexp, 1e-6, 5e-6));
      CHECK(at::equal(actual.argmax, expected.argmax));
      CHECK(at::equal(cpu.argmax, expected.argmax));
    }
  }
}

TEST_CASE("the logsumexp kernel takes the first of equals and passes on what is no number",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor logits = at::zeros({5, 2600});
  logits[0][7] = logits[0][31] = logits[0][2599] = 2;
  logits[1][20] = std::numeric_limits<float>::quiet_NaN();
  logits[2][3] = kInfinity;
  logits[3].fill_(-kInfinity);
  logits[3][2000] = -5;
  logits[4].fill_(-kInfinity);
  const Results scores = on_gpu(logits);
  CHECK(scores.argmax[0].item<int64_t>() == 7);
  CHECK(scores.logsumexp[0].isfinite().item<bool>());
  CHECK_FALSE(scores.logsumexp[1].isfinite().item<bool>());
  CHECK_FALSE(scores.logsumexp[2].isfinite().item<bool>());
  CHECK(scores.argmax[3].item<int64_t>() == 2000);
  CHECK(scores.logsumexp[3].item<float>() == -5);
  CHECK(scores.argmax[4].item<int64_t>() == 0);
}
