#include "tests/kernels/reference/stochastic_round.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/adamw.h"
#include "kernels/ops/device.h"
#include "tests/support/catch.h"

using at::Tensor;
using namespace moe::kernels;

namespace {

constexpr uint64_t kKey = rounding_key(17, 3);

Tensor rounded(const Tensor& in, uint64_t key = kKey, int64_t first = 0) {
  Tensor out = at::empty(in.sizes(), in.options().dtype(at::kBFloat16));
  stochastic_round(in, out, key, first);
  return out;
}

Tensor bits_of(const Tensor& bf16) { return bf16.view(at::kShort); }

Tensor by_reference(const Tensor& in, int64_t first) {
  Tensor out = at::empty(in.sizes(), at::kBFloat16);
  moe::test::stochastic_round_reference({in.const_data_ptr<float>(),
                                         static_cast<uint16_t*>(out.mutable_data_ptr()), in.numel(),
                                         kKey, first});
  return out;
}

// Every kind of bits: of normal numbers, of all exponents (subnormals, infinities and what is no
// number among them), and the edges.
Tensor awkward(int64_t count) {
  at::manual_seed(4);
  const Tensor any = at::randint(std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max(), {count}, at::kInt);
  const Tensor tiny = at::randint(0, 1 << 23, {count}, at::kInt);  // subnormals
  const std::vector<float> edges = {0.0F,
                                    -0.0F,
                                    1.0F,
                                    0x1.fffffep0F,
                                    std::numeric_limits<float>::max(),
                                    std::numeric_limits<float>::lowest(),
                                    std::numeric_limits<float>::denorm_min(),
                                    std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN(),
                                    std::bit_cast<float>(0x7f800001U),
                                    std::bit_cast<float>(0xffffffffU)};
  return at::cat(
      {at::randn({count}), any.view(at::kFloat), tiny.view(at::kFloat), at::tensor(edges)});
}

// Functions, since a compiler that meets lambdas here computes them for a quarter of a minute.
constexpr uint32_t kDraws = 1 << 16;

std::vector<double> draws_of(uint64_t stream, uint64_t step, uint32_t shift = 0) {
  std::vector<double> draws;
  for (uint32_t i = 0; i < kDraws; ++i) {
    draws.push_back(rounding_draw(rounding_key(stream, step), i + shift, 0));
  }
  return draws;
}

double correlation(const std::vector<double>& one, const std::vector<double>& other) {
  double sum = 0;
  for (size_t i = 0; i < kDraws; ++i) {
    sum += (one[i] - 32767.5) * (other[i] - 32767.5);
  }
  return sum / kDraws / (65536.0 * 65536.0 / 12);
}

}  // namespace

TEST_CASE("stochastic rounding equals its reference bit for bit, whatever the number",
          "[kernels]") {
  for (const int64_t count : {0, 1, 7, 31, 33, 70'000}) {
    const Tensor in = awkward(count);
    for (const int64_t first : {int64_t{0}, int64_t{5}, (int64_t{1} << 32) - 40}) {
      CAPTURE(count, first);
      CHECK(at::equal(bits_of(rounded(in, kKey, first)), bits_of(by_reference(in, first))));
    }
  }
}

TEST_CASE("a tensor rounded in pieces, or by other threads, gives the same bits", "[kernels]") {
  const Tensor in = awkward(50'000);
  const Tensor whole = rounded(in);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  const int64_t cut = 12'345;
  const Tensor pieces = at::cat(
      {rounded(in.narrow(0, 0, cut)), rounded(in.narrow(0, cut, in.numel() - cut), kKey, cut)});
  at::set_num_threads(threads);
  CHECK(at::equal(bits_of(pieces), bits_of(whole)));
}

TEST_CASE("what bf16 holds stays, the rest goes to one of its two neighbours", "[kernels]") {
  const Tensor in = at::randn({100'000}) * 100;
  const Tensor exact = in.to(at::kBFloat16);
  CHECK(at::equal(rounded(exact.to(at::kFloat)), exact));
  const Tensor out = rounded(in).to(at::kFloat);
  // Below |x| and above it lie numbers of bf16 less than a spacing, 2^-7 |x| at most, away.
  CHECK(((out - in).abs() < in.abs() / 128).all().item<bool>());
  CHECK((out > in).any().item<bool>());
  CHECK((out < in).any().item<bool>());
}

TEST_CASE("rounding goes up as often as the share of the way up says, over elements and steps",
          "[kernels]") {
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
    // A count of n draws deviates by sqrt(n p (1 - p)); six of those are met once in 5e8 counts, of
    // which this test makes 325. A share of elements that is one of 2^-16 is hit or not: 1 more.
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

TEST_CASE("streams, steps and neighbours draw independent numbers", "[kernels]") {
  const std::vector<double> draws = draws_of(1, 1);
  // Of n independent pairs the correlation deviates by 1 / sqrt(n); six of those.
  constexpr double kTolerance = 6.0 / 256;
  CHECK(std::abs(correlation(draws, draws) - 1) < kTolerance);
  CHECK(std::abs(correlation(draws, draws_of(2, 1))) < kTolerance);
  CHECK(std::abs(correlation(draws, draws_of(1, 2))) < kTolerance);
  CHECK(std::abs(correlation(draws, draws_of(1, 1, 1))) < kTolerance);
  CHECK(std::abs(correlation(draws, draws_of(1, 1, 4096))) < kTolerance);
}

TEST_CASE("stochastic rounding on CUDA gives the CPU's bits", "[kernels][gpu]") {
  if (gpu_count() == 0) {
    MOE_SKIP("no GPU");
  }
  for (const int64_t count : {0, 1, 33, 70'000}) {
    const Tensor in = awkward(count);
    CHECK(at::equal(bits_of(rounded(in.cuda(), kKey, 5).cpu()), bits_of(rounded(in, kKey, 5))));
  }
}

TEST_CASE("stochastic rounding beside a copy to bf16, 16 M elements", "[!benchmark]") {
  at::set_num_threads(1);
  const Tensor in = at::randn({1 << 24});
  Tensor out = at::empty({1 << 24}, at::kBFloat16);
  const auto milliseconds = [](auto&& work) {
    work();
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  fmt::print("stochastic {:.1f} ms, nearest {:.1f} ms\n",
             milliseconds([&] { stochastic_round(in, out, kKey, 0); }),
             milliseconds([&] { out.copy_(in); }));
}
