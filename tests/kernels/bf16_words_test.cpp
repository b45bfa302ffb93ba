// Numbers made ready for products of bf16, held to the conversions of single numbers.

#include "kernels/cpu/bf16_words.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "tests/support/catch.h"

using namespace moe::kernels;

namespace {

constexpr float kUntouched = 12345;

// Ties of both kinds, infinities, NaN, the largest and the smallest that products take, among
// numbers that need rounding.
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

bool are_equal(uint16_t found, uint16_t expected) {
  return std::isnan(widen(expected)) ? std::isnan(widen(found)) : found == expected;
}

bool is_word(float word, uint16_t low, uint16_t high) {
  const auto bits = std::bit_cast<uint32_t>(word);
  return are_equal(static_cast<uint16_t>(bits), low) &&
         are_equal(static_cast<uint16_t>(bits >> 16), high);
}

std::vector<uint16_t> all_rounded(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) {
    bits.push_back(rounded(value));
  }
  return bits;
}

}  // namespace

TEST_CASE("numbers for products are rounded to nearest, ties to even, and written no further",
          "[kernels]") {
  for (const int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100}) {
    CAPTURE(count);
    const auto first = awkward(count), second = awkward(2 * count + 1);
    std::vector<uint16_t> narrow(static_cast<size_t>(count) + 1, 77);
    f32_to_bf16_ftz(first.data(), count, narrow.data());
    CHECK(narrow.back() == 77);
    std::vector<float> words(static_cast<size_t>(count) + 1, kUntouched), same = words;
    const float* other = second.data() + count + 1;  // in another phase
    pack_bf16_pairs(first.data(), other, count, words.data());
    const auto low = all_rounded(first), high = all_rounded({other, other + count});
    pack_bf16_pairs(low.data(), high.data(), count, same.data());
    int64_t right = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      right += are_equal(narrow[i], low[i]) && is_word(words[i], low[i], high[i]) &&
               is_word(same[i], low[i], high[i]);
    }
    CHECK(right == count);
    CHECK(words.back() == kUntouched);
    CHECK(same.back() == kUntouched);
  }
}

TEST_CASE("sixteen columns are transposed into words, zero past the last number", "[kernels]") {
  if (!has_avx512_bf16()) {
    MOE_SKIP("this processor has no instructions for bf16");
  }
  for (const int64_t k : {0, 1, 2, 31, 32, 33, 64, 255}) {
    CAPTURE(k);
    const int64_t stride = k + 5, width = 64, words = (k + 1) / 2;
    const auto columns = awkward(16 * stride);
    const auto narrow = all_rounded(columns);
    std::vector<float> found(static_cast<size_t>((words + 1) * width), kUntouched), same = found;
    transpose_bf16_pairs(columns.data(), stride, k, width, found.data());
    transpose_bf16_pairs(narrow.data(), stride, k, width, same.data());
    int64_t wrong = 0;
    for (int64_t p = 0; p <= words; ++p) {
      for (int64_t j = 0; j < width; ++j) {
        const auto at = static_cast<size_t>(p * width + j);
        if (j >= 16 || p == words) {
          wrong += found[at] != kUntouched || same[at] != kUntouched;
        } else {
          const auto from = static_cast<size_t>(j * stride + 2 * p);
          const uint16_t high = 2 * p + 1 < k ? narrow[from + 1] : uint16_t{0};
          wrong +=
              !is_word(found[at], narrow[from], high) || !is_word(same[at], narrow[from], high);
        }
      }
    }
    CHECK(wrong == 0);
  }
}
