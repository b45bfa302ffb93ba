// Logits a tile at a time against whole ones, in double.
#include "kernels/ops/token_log_probs.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tests/support/catch.h"

namespace {

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

// A few tokens of every row but each fifth, the same one twice.
std::vector<TargetToken> some_tokens(int64_t rows, int64_t vocabulary) {
  std::vector<TargetToken> asked;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; row % 5 != 4 && i < 3; ++i) {
      asked.push_back({row, (row * 7919 + i * 104729) % vocabulary});
    }
    if (row % 5 == 0) {
      asked.push_back({row, asked.back().token});
    }
  }
  return asked;
}

void check_scores(int64_t rows, int64_t width, int64_t vocabulary) {
  CAPTURE(rows, width, vocabulary);
  const Tensor hidden = at::randn({rows, width}), weight = at::randn({vocabulary, width}) * 0.3;
  auto asked = some_tokens(rows, vocabulary);
  const Tensor logits = hidden.to(at::kDouble).mm(weight.to(at::kDouble).t());
  if (rows > 0) {  // one that is the likeliest
    asked.push_back({rows - 1, logits[rows - 1].argmax().item<int64_t>()});
  }
  const auto scores = token_log_probs(hidden, weight, at::kFloat, asked);
  const auto whole = token_log_probs_of_whole_logits(hidden, weight, at::kFloat, asked);
  const Tensor expected = logits.log_softmax(1);
  REQUIRE(scores.size() == asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    // A logit is a sum of D <= 600 terms of about 0.3, of error below 600 * 2^-24 * 0.3 = 1e-5, and
    // a log-probability below 64 is rounded to 4e-6.
    const double exact = expected[asked[i].row][asked[i].token].item<double>();
    CHECK(std::abs(scores[i].logprob - exact) < 2e-5);
    CHECK(std::abs(whole[i].logprob - exact) < 2e-5);
    CHECK(scores[i].is_argmax == whole[i].is_argmax);
  }
  if (rows > 0) {
    CHECK(scores.back().is_argmax);
  }
}

TEST_CASE("token_log_probs are the log-softmax of whole logits", "[kernels]") {
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

TEST_CASE("token_log_probs are those of the numbers that operands are rounded to", "[kernels]") {
  at::manual_seed(4);
  for (const int64_t rows : {1, 31, 40, 600}) {
    const Tensor hidden = at::randn({rows, 64}), weight = at::randn({1500, 64});
    const auto asked = some_tokens(rows, 1500);
    const auto check = [&](const Tensor& x, const Tensor& y, at::ScalarType type,
                           const Tensor& same_x, const Tensor& same_y, at::ScalarType same_type,
                           double most) {
      const auto found = token_log_probs(x, y, type, asked);
      const auto same = token_log_probs(same_x, same_y, same_type, asked);
      for (size_t i = 0; i < asked.size(); ++i) {
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

TEST_CASE("of equal logits the first token is the likeliest, over tiles too", "[kernels]") {
  const Tensor hidden = at::ones({1, 1});
  Tensor weight = at::zeros({3000, 1});
  weight[7] = weight[31] = weight[2500] = 2;
  const std::vector<TargetToken> asked = {{0, 7}, {0, 31}, {0, 2500}};
  const auto scores = token_log_probs(hidden, weight, at::kFloat, asked);
  CHECK(scores[0].is_argmax);
  CHECK_FALSE(scores[1].is_argmax);
  CHECK_FALSE(scores[2].is_argmax);
}

TEST_CASE("token_log_probs hide nothing that is no number", "[kernels]") {
  Tensor hidden = at::ones({3, 1});
  hidden[1] = std::numeric_limits<float>::quiet_NaN();
  Tensor weight = at::zeros({2100, 1});
  const std::vector<TargetToken> asked = {{0, 1}, {1, 1}, {2, 2099}};
  auto scores = token_log_probs(hidden, weight, at::kFloat, asked);
  CHECK(std::isfinite(scores[0].logprob));
  CHECK_FALSE(std::isfinite(scores[1].logprob));
  CHECK(std::isfinite(scores[2].logprob));
  weight[2000] = std::numeric_limits<float>::infinity();
  scores = token_log_probs(hidden, weight, at::kFloat, asked);
  CHECK_FALSE(std::isfinite(scores[0].logprob));
  CHECK_FALSE(std::isfinite(scores[2].logprob));
}

TEST_CASE("token_log_probs refuse what is not in the matrices", "[kernels]") {
  const Tensor hidden = at::ones({2, 4}), weight = at::ones({3, 4});
  const auto ask = [&](std::vector<TargetToken> asked) {
    return token_log_probs(hidden, weight, at::kFloat, asked);
  };
  CHECK_THROWS(ask({{0, 3}}));
  CHECK_THROWS(ask({{2, 0}}));
  CHECK_THROWS(ask({{1, 0}, {0, 0}}));
  CHECK(ask({{0, 0}}).size() == 1);
}

}  // namespace
