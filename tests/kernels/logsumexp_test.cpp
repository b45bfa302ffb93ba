#include <ATen/ATen.h>

#include <limits>

#include "kernels/ops/cross_entropy.h"
#include "tests/support/catch.h"

using at::Tensor;

namespace {

struct Results {
  Tensor logsumexp, argmax;
};

}  // namespace

TEST_CASE("logsumexp_argmax gives LibTorch's logsumexp in double and argmax", "[kernels]") {
  at::manual_seed(5);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t vocabulary : {1, 15, 16, 17, 1001, 32000}) {
      const Tensor logits = at::randn({rows, vocabulary}) * 6;
      Results scores;
      moe::kernels::logsumexp_argmax(logits, scores.logsumexp, scores.argmax);
      // exp to 2 units in the last place, a sum of V terms in 16 lanes, one rounding of the result,
      // which is below 64: 64 * 2^-24 = 4e-6.
      CHECK(at::allclose(scores.logsumexp.to(at::kDouble), logits.to(at::kDouble).logsumexp(1),
                         1e-6, 5e-6));
      CHECK(at::equal(scores.argmax, logits.argmax(1)));
    }
  }
}

TEST_CASE("logsumexp_argmax takes the first of equals and hides no NaN", "[kernels]") {
  Tensor logits = at::zeros({3, 40});
  logits[0][7] = 2;
  logits[0][31] = 2;
  logits[1][20] = std::numeric_limits<float>::quiet_NaN();
  logits[2][3] = std::numeric_limits<float>::infinity();
  Results scores;
  moe::kernels::logsumexp_argmax(logits, scores.logsumexp, scores.argmax);
  CHECK(scores.argmax[0].item<int64_t>() == 7);
  CHECK(scores.logsumexp[0].isfinite().item<bool>());
  CHECK_FALSE(scores.logsumexp[1].isfinite().item<bool>());
  CHECK_FALSE(scores.logsumexp[2].isfinite().item<bool>());
}
