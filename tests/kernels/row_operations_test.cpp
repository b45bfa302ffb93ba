// Operations on rows (cross-entropy, RMS norm, RoPE, SwiGLU, token log-probabilities) on the CPU
// against references in f64, with finite differences.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kernels/ops/rope.h"
#include "kernels/ops/token_log_probs.h"
#include "tests/kernels/reference/cross_entropy.h"
#include "tests/kernels/reference/rms_norm.h"
#include "tests/kernels/reference/rope.h"
#include "tests/kernels/reference/swiglu.h"
#include "tests/support/gradcheck.h"

using namespace moe::kernels;
using namespace moe::test;
using at::Tensor;

namespace {

// Some tokens of most rows; every fifth row has one token twice, and another fifth has none.
std::vector<TargetToken> some_tokens(int64_t rows, int64_t vocabulary) {
  std::vector<TargetToken> targets;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; row % 5 != 4 && i < 3; ++i) {
      targets.push_back({row, (row * 7919 + i * 104729) % vocabulary});
    }
    if (row % 5 == 0) {
      targets.push_back({row, targets.back().token});
    }
  }
  return targets;
}

void check_scores(int64_t rows, int64_t width, int64_t vocabulary) {
  CAPTURE(rows, width, vocabulary);
  const Tensor hidden = at::randn({rows, width}), weight = at::randn({vocabulary, width}) * 0.3;
  auto targets = some_tokens(rows, vocabulary);
  const Tensor logits = hidden.to(at::kDouble).mm(weight.to(at::kDouble).t());
  if (rows > 0) {  // one that is the likeliest
    targets.push_back({rows - 1, logits[rows - 1].argmax().item<int64_t>()});
  }
  const auto scores = token_log_probs(hidden, weight, at::kFloat, targets);
  const auto whole = token_log_probs_from_logits(hidden, weight, at::kFloat, targets);
  const Tensor expected = logits.log_softmax(1);
  REQUIRE(scores.size() == targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    // A logit is a sum of D <= 600 terms of about 0.3, of error below 600 * 2^-24 * 0.3 = 1e-5, and
    // a log-probability below 64 is rounded to 4e-6.
    const double exact = expected[targets[i].row][targets[i].token].item<double>();
    CHECK(std::abs(scores[i].logprob - exact) < 2e-5);
    CHECK(std::abs(whole[i].logprob - exact) < 2e-5);
    CHECK(scores[i].is_argmax == whole[i].is_argmax);
  }
  if (rows > 0) {
    CHECK(scores.back().is_argmax);
  }
}

}  // namespace

TEST_CASE("cross_entropy_ equals the log-softmax in double, with its gradient") {
  check_losses(
      [](const Tensor& logits, const Tensor& target, bool in_bf16) {
        Tensor memory = logits.clone();
        const Tensor loss = at::empty({logits.size(0)}, at::kDouble);
        const Tensor gradient = cross_entropy_(memory, target, kLossScale, loss, in_bf16);
        CHECK(gradient.is_alias_of(memory));
        return LossResults{loss, gradient};
      },
      {0, 1, 31, 33}, 32'000);
}

TEST_CASE("logsumexp_argmax equals LibTorch's in double, the first of equal logits") {
  check_logsumexp(
      [](const Tensor& logits) {
        LogSumExpResults results;
        logsumexp_argmax(logits, results.logsumexp, results.argmax);
        return results;
      },
      {0, 1, 31, 33}, 32'000);
}

TEST_CASE("rms_norm and add_rms_norm equal the formula in double, with their gradients") {
  at::manual_seed(1);
  const auto run = [](const NormInputs& in, at::ScalarType type) {
    return norm_by_operation(in, type, at::kCPU);
  };
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 4}, {1, 1}, {1, 33}, {31, 7}, {33, 64}, {129, 7}, {300, 64}}) {
    // At most 300 terms of 2^-53; then sums of 300 terms in f32, of 2^-24.
    check_norm(run, rows, width, at::kDouble, at::kDouble, 0, {1e-12, 1e-11, 1e-11, 1e-11, 1e-11});
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const int used : {0, 1, 2, 3}) {
        check_norm(run, rows, width, at::kFloat, type, used, {1e-5, 1e-4, 1e-5, 1e-4, 1e-4});
      }
    }
  }
}

TEST_CASE("rms_norm of a row of zeros is zero with a finite gradient") {
  const Tensor x = at::zeros({2, 8}).requires_grad_(true);
  const Tensor out = rms_norm(x, at::ones({8}), 1e-6);
  CHECK(out.abs().sum().item<double>() == 0);
  CHECK(torch::autograd::grad({out.sum()}, {x})[0].isfinite().all().item<bool>());
}

TEST_CASE("rms_norm to bf16 is the rounded one, with gradients, without and of a sum") {
  at::manual_seed(7);
  for (const int64_t rows : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 33, 512, 1030}) {
      CAPTURE(rows, width);
      const Tensor x = at::randn({rows, width}), weight = at::randn({width});
      const Tensor expected = rms_norm(x, weight, 1e-5).to(at::kBFloat16);
      CHECK(at::equal(rms_norm(x, weight, 1e-5, /*to_bf16=*/true), expected));
      const Tensor trained = x.clone().requires_grad_(true);
      CHECK(at::equal(rms_norm(trained, weight, 1e-5, /*to_bf16=*/true), expected));
      const auto [sum, y] = add_rms_norm(x, at::zeros_like(expected), weight, 1e-5, true);
      CHECK(at::equal(sum, x));
      CHECK(at::equal(y, expected));
    }
  }
  CHECK_THROWS(add_rms_norm(at::zeros({5, 8}), at::zeros({4, 8}), at::zeros({8}), 1e-5, false));
}

TEST_CASE("rope rotates the first heads and keeps the others, with its gradient") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 16}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(tokens, half, static_cast<int>(type));
        const RopeCase one(tokens, 4, 3, half);
        const Tensor x = one.x.to(type).requires_grad_(true), upstream = at::randn_like(x);
        const Tensor y = rope(x, one.cosine, one.sine, one.position, 3, 2 * half);
        CHECK(is_close_rotation(y, one.expected(one.x, false)));
        CHECK(at::equal(y.narrow(1, 6 * half, 2 * half), x.narrow(1, 6 * half, 2 * half)));
        const Tensor in_place = x.detach().clone();
        rope_(in_place, one.cosine, one.sine, one.position, 3, 2 * half);
        CHECK(at::equal(in_place, y));
        (y * upstream).sum().backward();
        CHECK(is_close_rotation(x.grad(), one.expected(upstream, true)));
        const Tensor heads = upstream.view({tokens, 4, 2 * half});
        CHECK(at::equal(rope_backward(heads.narrow(1, 0, 2), heads.narrow(1, 2, 1),
                                      heads.narrow(1, 3, 1), one.cosine, one.sine, one.position),
                        x.grad()));
      }
    }
  }
}

TEST_CASE("rope refuses shapes that do not fit") {
  const RopeCase one(4, 3, 2, 3);
  const auto& [rotated, x, position, cosine, sine] = one;
  CHECK_THROWS(rope(x, cosine, sine, position, 4, 6));
  CHECK_THROWS(rope(x, cosine, sine, position, 2, 9));
  CHECK_THROWS(rope(x, cosine, sine, position.to(at::kLong), 2, 6));
  CHECK_THROWS(rope_(x.t().contiguous().t(), cosine, sine, position, 2, 6));
  const Tensor heads = at::zeros({4, 2, 6});
  CHECK_THROWS(rope_backward(heads, heads.narrow(1, 0, 1), heads, cosine, sine, position));
}

TEST_CASE("swiglu equals the formula in double on awkward shapes, with its gradient") {
  at::manual_seed(1);
  const auto run = [](const Tensor& hidden, const Tensor& grad_out) {
    const Tensor given = grad_out.clone(), same_grad = swiglu_backward_(given, hidden, {});
    return SwigluResults{swiglu_forward(hidden, {}), swiglu_backward(grad_out, hidden, {}), given,
                         same_grad};
  };
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 8}, {1, 1}, {1, 7}, {31, 33}, {33, 31}, {5, 64}, {128, 96}, {3, 1300}}) {
    check_swiglu(run, rows, width);
    // bf16 is f32, rounded once.
    const Tensor hidden = at::randn({rows, 2 * width}).to(at::kBFloat16);
    const Tensor grad_out = at::randn({rows, width}).to(at::kBFloat16);
    const Tensor wide = hidden.to(at::kFloat), wide_grad = grad_out.to(at::kFloat);
    CHECK(at::equal(swiglu_forward(hidden, {}), swiglu_forward(wide, {}).to(at::kBFloat16)));
    CHECK(at::equal(swiglu_backward(grad_out, hidden, {}),
                    swiglu_backward(wide_grad, wide, {}).to(at::kBFloat16)));
  }
  CHECK_THROWS(swiglu_backward_(at::ones({2, 3}).t(), at::ones({3, 4}), {}));
  Tensor bad = at::zeros({1, 32});
  bad[0][3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(swiglu_forward(bad, {})[0][3].isnan().item<bool>());
  CHECK(swiglu_forward(bad.to(at::kBFloat16), {})[0][3].isnan().item<bool>());
}

TEST_CASE("swiglu's gradient is the finite difference") {
  at::manual_seed(2);
  const Tensor hidden = at::randn({3, 10}, at::kDouble), upstream = at::randn({3, 5}, at::kDouble);
  const auto loss = [&](const Tensor& x) { return (swiglu(x) * upstream).sum(); };
  CHECK(distance(autograd(loss, hidden), finite_difference(loss, hidden)) < kGradTolerance);
}

// Logits a tile at a time against whole ones, in double.

TEST_CASE("token_log_probs are the log-softmax of whole logits") {
  at::manual_seed(3);
  check_scores(0, 8, 10);
  check_scores(1, 256, 32000);
  check_scores(33, 16, 1);
  check_scores(31, 64, 1023);
  check_scores(7, 600, 513);
  check_scores(2050, 8, 700);
  check_scores(511, 8, 1025);
  check_scores(513, 8, 2048);
  check_scores(1030, 16, 3001);
}

TEST_CASE("token_log_probs are those of the numbers that operands are rounded to") {
  at::manual_seed(4);
  for (const int64_t rows : {1, 31, 40, 600}) {
    const Tensor hidden = at::randn({rows, 64}), weight = at::randn({1500, 64});
    const auto targets = some_tokens(rows, 1500);
    const auto check = [&](const Tensor& x, const Tensor& y, at::ScalarType type,
                           const Tensor& same_x, const Tensor& same_y, at::ScalarType same_type,
                           double most) {
      const auto found = token_log_probs(x, y, type, targets);
      const auto same = token_log_probs(same_x, same_y, same_type, targets);
      for (size_t i = 0; i < targets.size(); ++i) {
        CAPTURE(rows, i);
        CHECK(std::abs(found[i].logprob - same[i].logprob) <= most);
        CHECK((most > 0 || found[i].is_argmax == same[i].is_argmax));
      }
    };
    const auto rounded = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); };
    // Products of bf16 are exact in f32, but a processor's own are added in another order: 64 terms
    // of order one, 2^-24 each.
    constexpr double kOtherOrder = 64 * 0x1p-22;
    check(hidden, weight, at::kBFloat16, rounded(hidden), rounded(weight), at::kFloat, kOtherOrder);
    const Tensor half = weight.to(at::kHalf), narrow = weight.to(at::kBFloat16);
    check(hidden, half, at::kBFloat16, hidden, half.to(at::kBFloat16), at::kBFloat16, kOtherOrder);
    for (const auto type : {at::kFloat, at::kBFloat16}) {  // a weight that is stored in bf16
      check(hidden, narrow, type, hidden, rounded(weight), type, rows < 6 ? 2e-5 : 0);
    }
  }
}

TEST_CASE("of equal logits the first token is the likeliest, over tiles too") {
  const Tensor hidden = at::ones({1, 1});
  Tensor weight = at::zeros({3000, 1});
  weight[7] = weight[31] = weight[2500] = 2;
  const std::vector<TargetToken> targets = {{0, 7}, {0, 31}, {0, 2500}};
  const auto scores = token_log_probs(hidden, weight, at::kFloat, targets);
  CHECK(scores[0].is_argmax);
  CHECK_FALSE(scores[1].is_argmax);
  CHECK_FALSE(scores[2].is_argmax);
}

TEST_CASE("token_log_probs are not finite if an operand is NaN or infinite") {
  Tensor hidden = at::ones({3, 1});
  hidden[1] = std::numeric_limits<float>::quiet_NaN();
  Tensor weight = at::zeros({2100, 1});
  const std::vector<TargetToken> targets = {{0, 1}, {1, 1}, {2, 2099}};
  auto scores = token_log_probs(hidden, weight, at::kFloat, targets);
  CHECK(std::isfinite(scores[0].logprob));
  CHECK_FALSE(std::isfinite(scores[1].logprob));
  CHECK(std::isfinite(scores[2].logprob));
  weight[2000] = std::numeric_limits<float>::infinity();
  scores = token_log_probs(hidden, weight, at::kFloat, targets);
  CHECK_FALSE(std::isfinite(scores[0].logprob));
  CHECK_FALSE(std::isfinite(scores[2].logprob));
}

TEST_CASE("token_log_probs refuse what is not in the matrices") {
  const Tensor hidden = at::ones({2, 4}), weight = at::ones({3, 4});
  const auto ask = [&](std::vector<TargetToken> targets) {
    return token_log_probs(hidden, weight, at::kFloat, targets);
  };
  CHECK_THROWS(ask({{0, 3}}));
  CHECK_THROWS(ask({{2, 0}}));
  CHECK_THROWS(ask({{1, 0}, {0, 0}}));
  CHECK(ask({{0, 0}}).size() == 1);
}
