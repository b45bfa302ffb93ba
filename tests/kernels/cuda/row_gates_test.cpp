#include "kernels/ops/row_gates.h"

#include "tests/support/card.h"
#include "tests/support/layout.h"

using at::Tensor;
using moe::kernels::GateRule;
using moe::kernels::GateShape;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_card;

namespace {

void check(const GateShape& shape, const Tensor& logits, const moe::test::Laid& laid) {
  const auto ints = [](const Tensor& tensor) { return tensor.const_data_ptr<int32_t>(); };
  const auto floats = [](const Tensor& tensor) { return tensor.data_ptr<float>(); };
  const Tensor upstream = at::randn({shape.tokens * shape.columns});
  const Tensor weight = at::empty_like(upstream), grad = at::empty_like(logits);
  moe::kernels::row_gates_reference(shape, floats(logits), ints(laid.layout.expert),
                                    ints(laid.layout.times), floats(weight));
  moe::kernels::row_gates_backward_reference(shape, floats(logits), ints(laid.layout.expert),
                                             ints(laid.layout.times), floats(weight),
                                             floats(upstream), floats(grad));

  const Tensor a = to_card(logits), expert = to_card(laid.layout.expert);
  const Tensor times = to_card(laid.layout.times), there = to_card(upstream);
  const Tensor weights = poisoned(weight.sizes(), at::kFloat);
  const Tensor grads = poisoned(logits.sizes(), at::kFloat);
  moe::kernels::row_gates_cuda(shape, floats(a), ints(expert), ints(times), floats(weights),
                               stream_of(a));
  moe::kernels::row_gates_backward_cuda(shape, floats(a), ints(expert), ints(times),
                                        floats(weights), floats(there), floats(grads),
                                        stream_of(a));
  // Shares: expf to 2 units in the last place of a difference of up to 100, rounded to 2^-24 of it.
  // Gradients: a few products of shares with numbers below 5, that may cancel.
  CHECK(at::allclose(weights.cpu(), weight, 2e-5, 1e-30));
  CHECK(at::allclose(grads.cpu(), grad, 2e-5, 2e-5));
}

}  // namespace

TEST_CASE("gates and their gradients equal the reference, saturated logits too", "[kernels][gpu]") {
  MOE_NEED_CARD();
  at::manual_seed(9);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t experts : {1, 5, 40}) {
      const int64_t k = experts > 2 ? 2 : 1;
      const auto laid = moe::test::random_layout(tokens, experts, k, 3);
      for (const auto rule : {GateRule::kSelected, GateRule::kProbability, GateRule::kPositive}) {
        for (const bool straight_through : {true, false}) {
          for (const double size : {1.0, 40.0}) {
            CAPTURE(tokens, experts, static_cast<int>(rule), straight_through, size);
            check({tokens, k + 2, experts, rule, straight_through},
                  at::randn({tokens, experts}) * size, laid);
          }
        }
      }
    }
  }
}
