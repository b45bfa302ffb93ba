// Conversions and arithmetic of vector loops against their definitions. Uses no LibTorch, so that
// tests/arm64.sh can build and run this file alone for another processor.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/vector_math.h"
#include "tests/support/catch.h"

using namespace moe::kernels;

namespace {

constexpr int64_t kAll = 1 << 16;  // of the bit patterns of 16 bits

std::vector<uint16_t> every_pattern() {
  std::vector<uint16_t> all(kAll);
  std::iota(all.begin(), all.end(), uint16_t{0});
  return all;
}

// Sign, exponent and fraction taken by arithmetic.
float f16_by_definition(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction),
                           std::max(exponent, 1) - 25);
  if (exponent == 31) {
    value = fraction == 0 ? INFINITY : NAN;
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// Returns the nearest bf16 of a finite number, ties to even. The neighbour above the largest bf16
// is infinity, which counts as 2^128.
uint16_t bf16_by_definition(float value) {
  const auto toward_zero = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto away = static_cast<uint16_t>(toward_zero + 1);
  const auto in_double = [](uint16_t bf16) {
    const double wide = std::bit_cast<float>(uint32_t{bf16} << 16);
    return std::isinf(wide) ? std::copysign(0x1p128, wide) : wide;
  };
  const double below = std::abs(value - in_double(toward_zero));
  const double above = std::abs(in_double(away) - value);
  if (below == above) {
    return toward_zero % 2 == 0 ? toward_zero : away;
  }
  return below < above ? toward_zero : away;
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// One assertion for all elements: hundreds of thousands of assertions would take most of the time.
template <typename IsRight>
void check_each(int64_t count, IsRight is_right) {
  int64_t first_wrong = 0;
  while (first_wrong < count && is_right(static_cast<size_t>(first_wrong))) {
    ++first_wrong;
  }
  CHECK(first_wrong == count);
}

// Numbers that need rounding, with ties of both kinds, infinities, NaN, and the largest and
// smallest numbers that products accept.
std::vector<float> awkward(int64_t count) {
  const std::vector<float> special = {
      0.0F,      -0.0F, 1 + 0x1p-8F, 1 + 3 * 0x1p-8F, INFINITY,
      -INFINITY, NAN,   0x1p-126F,   -0x1p-126F,      std::numeric_limits<float>::max()};
  std::vector<float> values;
  uint64_t seed = 7;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto random = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23));
    values.push_back(i % 3 == 0 ? special[static_cast<size_t>(i / 3) % special.size()] : random);
  }
  return values;
}

uint16_t rounded(float value) {
  uint16_t bits = 0;
  narrow_to(value, bits);
  return bits;
}

}  // namespace

TEST_CASE("every half is widened to its value") {
  const auto all = every_pattern();
  std::vector<float> wide(all.size());
  f16_to_f32(all.data(), kAll, wide.data());
  check_each(kAll, [&](size_t i) {
    const float expected = f16_by_definition(all[i]);
    return std::isnan(expected) ? std::isnan(wide[i]) : bits_of(wide[i]) == bits_of(expected);
  });
}

TEST_CASE("bf16 is the upper half of an f32, and converts back to itself") {
  const auto all = every_pattern();
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  bf16_to_f32(all.data(), kAll, wide.data());
  f32_to_bf16(wide.data(), kAll, back.data());
  check_each(kAll, [&](size_t i) {
    return bits_of(wide[i]) == uint32_t{all[i]} << 16 &&
           back[i] == (std::isnan(wide[i]) ? 0x7FC0 : all[i]);
  });
}

TEST_CASE("f32 is rounded to the nearest bf16, ties to even, in both forms") {
  std::vector<float> values;
  for (const uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
    for (uint32_t upper = 0; upper < kAll; ++upper) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(value)) {
        values.push_back(value);
      }
    }
  }
  values.push_back(INFINITY);  // an odd count, so that no vector ends with it
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  std::vector<float> rounded(values.size());
  f32_to_bf16(values.data(), count, narrow.data());
  round_to_bf16(values.data(), count, rounded.data());
  check_each(count, [&](size_t i) {
    const uint16_t expected = std::isinf(values[i]) ? 0x7F80 : bf16_by_definition(values[i]);
    return narrow[i] == expected && bits_of(rounded[i]) == uint32_t{expected} << 16;
  });
  const float nan = std::numeric_limits<float>::quiet_NaN();
  f32_to_bf16(&nan, 1, narrow.data());
  CHECK(narrow[0] == 0x7FC0);
}

TEST_CASE("vector_exp is exp within two units in the last place") {
  constexpr int64_t kSteps = 1 << 14;
  check_each(kSteps + 1, [](size_t i) {
    const float x = (static_cast<float>(i) / kSteps * 2 - 1) * 87;
    const double expected = std::exp(double{x});
    const double unit = std::ldexp(1.0, std::ilogb(expected) - 23);
    return std::abs(vector_exp(x) - expected) <= 2 * unit;
  });
  CHECK(vector_exp(200) == vector_exp(87));
  CHECK(vector_exp_negative(-200) == 0);
  CHECK(std::isnan(vector_exp(NAN)));
}

TEST_CASE(
    "numbers for products are rounded to nearest, ties to even, and none is written past the "
    "count") {
  for (const int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100}) {
    CAPTURE(count);
    const auto values = awkward(count);
    std::vector<uint16_t> narrow(static_cast<size_t>(count) + 1, 77);
    f32_to_bf16_ftz(values.data(), count, narrow.data());
    check_each(count, [&](size_t i) {
      const uint16_t expected = rounded(values[i]);
      return std::isnan(widen(expected)) ? std::isnan(widen(narrow[i])) : narrow[i] == expected;
    });
    CHECK(narrow.back() == 77);
  }
}
