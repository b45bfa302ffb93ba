#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/adamw.h"
#include "tests/support/matchers.h"
#include "tests/support/threads.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

constexpr uint64_t kKey = rounding_key(17, 3);

Tensor rounded(const Tensor& in, uint64_t key = kKey, int64_t first = 0) {
  Tensor out = at::empty(in.sizes(), in.options().dtype(at::kBFloat16));
  stochastic_round(in, out, key, first);
  return out;
}

Tensor bits_of(const Tensor& bf16) { return bf16.view(at::kShort); }

// Stochastic rounding by its definition: finds both bf16 neighbours and the share between them in
// double, where every step is exact.
float round_one(float in, uint32_t draw) {
  constexpr int kDigits = 8, kLeastExponent = -133;  // of bf16; its smallest number is 2^-133
  constexpr double kLargest = 0x1.fep127;
  if (!std::isfinite(in)) {
    return in;
  }
  const double magnitude = std::fabs(static_cast<double>(in));
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = 0.1xxx * 2^exponent
  const double spacing = std::ldexp(1.0, std::max(exponent - kDigits, kLeastExponent));
  const double below = std::floor(magnitude / spacing) * spacing;
  const double share = (magnitude - below) / spacing;  // a multiple of 2^-16
  const double out = share + draw / 65536.0 >= 1 ? below + spacing : below;
  return static_cast<float>(std::copysign(std::min(out, kLargest), in));
}

Tensor by_reference(const Tensor& in, int64_t first) {
  const Tensor out = at::empty(in.sizes(), at::kBFloat16);
  for (int64_t i = 0; i < in.numel(); ++i) {
    const auto index = static_cast<uint64_t>(first + i);
    const uint32_t draw =
        rounding_draw(kKey, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32));
    const float value = round_one(in.const_data_ptr<float>()[i], draw);
    const auto bits = std::bit_cast<uint32_t>(value);
    static_cast<uint16_t*>(out.mutable_data_ptr())[i] =
        static_cast<uint16_t>(std::isnan(value) ? (bits >> 31 << 15) | 0x7fc0U : bits >> 16);
  }
  return out;
}

// Normal numbers, random bits of all exponents (with subnormals, infinities and NaN), and edge
// cases.
Tensor awkward(int64_t count) {
  at::manual_seed(4);
  const Tensor any = at::randint(std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max(), {count}, at::kInt);
  const Tensor tiny = at::randint(0, 1 << 23, {count}, at::kInt);  // subnormals
  using Limits = std::numeric_limits<float>;
  std::vector<float> edges = {0.0F, -0.0F, 1.0F, 0x1.fffffep0F, Limits::max(), Limits::lowest()};
  edges.insert(edges.end(),
               {Limits::denorm_min(), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0xffffffffU)});
  return at::cat(
      {at::randn({count}), any.view(at::kFloat), tiny.view(at::kFloat), at::tensor(edges)});
}

// The draws of 2^16 elements, less their mean, over their deviation.
Tensor draws(uint64_t stream, uint64_t step, uint32_t shift = 0) {
  std::vector<double> all;
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    all.push_back((rounding_draw(rounding_key(stream, step), i + shift, 0) - 32767.5) /
                  std::sqrt(65536.0 * 65536.0 / 12));
  }
  return at::tensor(all, at::kDouble);
}

}  // namespace

TEST_CASE("stochastic rounding equals its reference bit for bit, for every kind of number") {
  for (const int64_t count : {0, 1, 7, 31, 33, 70'000}) {
    const Tensor in = awkward(count);
    for (const int64_t first : {int64_t{0}, int64_t{5}, (int64_t{1} << 32) - 40}) {
      CAPTURE(count, first);
      CHECK(at::equal(bits_of(rounded(in, kKey, first)), bits_of(by_reference(in, first))));
    }
  }
}

TEST_CASE("a tensor rounded in pieces, or by other threads, gives the same bits") {
  const Tensor in = awkward(50'000);
  const int64_t cut = 12'345, rest = in.numel() - cut;
  by_any_threads([&] {
    const Tensor whole = rounded(in);
    const Tensor first = rounded(in.narrow(0, 0, cut));
    const Tensor second = rounded(in.narrow(0, cut, rest), kKey, cut);
    CHECK(at::equal(bits_of(at::cat({first, second})), bits_of(whole)));
    return std::vector{whole};
  });
}

TEST_CASE("numbers are rounded up with the probability of their distance, in all steps") {
  constexpr int64_t kElements = 1 << 16;
  constexpr uint64_t kSteps = 64;
  for (const double share : {1.0 / 65536, 0.01, 0.128, 0.5, 0.9}) {
    // Between 1 and its neighbour 1 + 2^-7: a multiple of 2^-23, so the share is one of 2^-16.
    const auto value = static_cast<float>(1 + std::round(share * 65536) / 65536 / 128);
    const double probability = (static_cast<double>(value) - 1) * 128;
    const Tensor in = at::full({kElements}, value);
    Tensor ups = at::zeros({kElements}, at::kLong);
    double worst_step = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      const Tensor up = rounded(in, rounding_key(99, step)) > 1;
      ups += up;
      worst_step =
          std::max(worst_step, std::abs(up.sum().item<double>() / kElements - probability));
    }
    CAPTURE(share, worst_step);
    // A count of n draws has the standard deviation sqrt(n p (1 - p)). It is off by six of them
    // once in 5e8 counts; this test makes 325. The bound has one count more, for p near 2^-16.
    const auto six_sigma = [&](double draws) {
      return 6 * std::sqrt(probability * (1 - probability) / draws) + 1 / draws;
    };
    CHECK(worst_step < six_sigma(kElements));
    CHECK(std::abs(ups.sum().item<double>() / (kElements * kSteps) - probability) <
          six_sigma(static_cast<double>(kElements * kSteps)));
    // And element by element the steps are independent: the variance of the elements' counts is
    // that of a binomial. A sample variance over N elements deviates by about
    // sqrt(2 / N + kurtosis / N) of itself, kurtosis < 1 / (kSteps p (1 - p)).
    const double expected = kSteps * probability * (1 - probability);
    const double variance = ups.to(at::kDouble).var().item<double>();
    CHECK(std::abs(variance / expected - 1) < 6 * std::sqrt((2 + 1 / expected) / kElements));
  }
}

TEST_CASE("streams, steps and neighbours draw independent numbers") {
  const Tensor first = draws(1, 1);
  const auto correlation = [&](const Tensor& other) {
    return (first * other).mean().item<double>();
  };
  // The correlation of n independent pairs has deviation 1 / sqrt(n); the bound is six of those.
  constexpr double kTolerance = 6.0 / 256;
  CHECK(std::abs(correlation(first) - 1) < kTolerance);
  for (const Tensor& other : {draws(2, 1), draws(1, 2), draws(1, 1, 1), draws(1, 1, 4096)}) {
    CHECK(std::abs(correlation(other)) < kTolerance);
  }
}

TEST_CASE("adamw_ on the CPU updates f32 weights by scaled gradients") {
  const Tensor gradient = at::ones({4}), master = at::ones({4});
  const Tensor mean = at::zeros({4}), square = at::zeros({4});
  const AdamWSettings settings{.lr = 0.25};
  adamw_(gradient, master, mean, square, {}, settings, {});
  // The first update is lr * g / |g|.
  CHECK(at::allclose(master, at::full({4}, 0.75), 1e-6));
  const Tensor next = master.clone(), next_mean = mean.clone(), next_square = square.clone();
  adamw_(gradient.clone(), next, next_mean, next_square, {}, settings, at::full({1}, 0.1F));
  adamw_(gradient * 0.1, master, mean, square, {}, settings, {});
  CHECK(at::equal(next, master));
  CHECK(at::equal(next_square, square));
}
