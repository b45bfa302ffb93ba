#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"
#include "tests/kernels/reference/gemm.h"
#include "tests/support/catch.h"

using namespace moe::kernels;

namespace {

struct Case {
  int64_t m, n, k;
};

// 1, 31, 33 and whole tiles; widths that no vector divides; more than one block of each kind.
const std::vector<Case> kCases = {{0, 5, 3},     {1, 1, 1},    {3, 7, 0},      {1, 33, 31},
                                  {6, 64, 256},  {31, 17, 33}, {33, 100, 300}, {101, 75, 513},
                                  {97, 600, 40}, {5, 1030, 9}};

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) / (1 << 23);
  }
  return values;
}

MatrixView view(const std::vector<float>& values, int64_t rows, int64_t columns, bool transposed) {
  return transposed ? MatrixView{values.data(), 1, rows} : MatrixView{values.data(), columns, 1};
}

}  // namespace

TEST_CASE("gemm equals plain loops in double, whichever way its matrices lie", "[kernels]") {
  for (const auto& [m, n, k] : kCases) {
    const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
    for (int form = 0; form < 8; ++form) {
      CAPTURE(m, n, k, form);
      const MatrixView left = view(a, m, k, form & 1), right = view(b, k, n, form & 2);
      const bool accumulate = form & 4;
      const int64_t c_row = n + 3;  // what lies between the rows stays
      auto fast = numbers(m * c_row, 3), slow = fast;
      const auto before = fast;
      gemm({m, n, k}, left, right, fast.data(), c_row, accumulate);
      moe::test::gemm_reference({m, n, k}, left, right, slow.data(), c_row, accumulate);
      // k products of numbers below 1 and their sums, each rounded: k * k * 2^-24 at most, in
      // practice its root.
      const double most = (1 + static_cast<double>(k)) * 0x1p-22;
      for (size_t i = 0; i < fast.size(); ++i) {
        const bool is_between = static_cast<int64_t>(i) % c_row >= n;
        REQUIRE(std::abs(fast[i] - slow[i]) <= (is_between ? 0 : most));
      }
      for (const auto& kernel : tile_kernels()) {  // of each instruction set
        CAPTURE(kernel.width);
        auto other = before;
        gemm_with(kernel, {m, n, k}, left, right, other.data(), c_row, accumulate);
        double apart = 0;
        for (size_t i = 0; i < other.size(); ++i) {
          apart = std::max<double>(apart, std::abs(other[i] - slow[i]));
        }
        CHECK(apart <= most);
      }
    }
  }
}

TEST_CASE("gemm of numbers in bf16 is gemm of what they say in f32, bit for bit", "[kernels]") {
  const TileKernel& f32 = tile_kernels().front();
  for (const auto& [m, n, k] : kCases) {
    const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
    const auto narrowed = [](const std::vector<float>& wide) {
      std::vector<uint16_t> bits(wide.size());
      f32_to_bf16(wide.data(), static_cast<int64_t>(wide.size()), bits.data());
      return bits;
    };
    const auto a16 = narrowed(a), b16 = narrowed(b);
    const auto widened = [](const std::vector<uint16_t>& bits) {
      std::vector<float> wide;
      for (const uint16_t one : bits) {
        wide.push_back(moe::kernels::widen(one));
      }
      return wide;
    };
    const auto plain_a = widened(a16), plain_b = widened(b16);
    for (int form = 0; form < 4; ++form) {
      CAPTURE(m, n, k, form);
      MatrixView left = view(plain_a, m, k, form & 1), right = view(plain_b, k, n, form & 2);
      std::vector<float> expected(static_cast<size_t>(m * n)), found = expected;
      gemm_with(f32, {m, n, k}, left, right, expected.data(), n, false);
      left.data = a16.data();
      right.data = b.data();
      left.dtype = Dtype::kBF16;
      right.dtype = Dtype::kF32RoundedToBF16;
      gemm_with(f32, {m, n, k}, left, right, found.data(), n, false);
      CHECK((found == expected));
      gemm({m, n, k}, left, right, found.data(), n, false);
      left.data = a.data();
      right.data = b16.data();
      left.dtype = Dtype::kF32RoundedToBF16;
      right.dtype = Dtype::kBF16;
      std::vector<uint16_t> rounded(expected.size());
      const ColumnBlock whole{right, n};
      gemm_to_bf16({m, n, k}, left, {&whole, 1}, rounded.data(), n);
      CHECK((rounded == narrowed(found)));
    }
  }
}

// Whole numbers, whose sums are exact in any order, so that every kernel makes the same bits.
TEST_CASE("kernels of bf16 equal plain loops, however their operands are stored and lie",
          "[kernels]") {
  for (const auto& [m, n, k] : kCases) {
    const auto whole = [](std::vector<float> values) {
      for (float& value : values) {
        value = std::round(value * 9);
      }
      return values;
    };
    const auto a = whole(numbers(m * k, 1)), b = whole(numbers(k * n, 2));
    std::vector<uint16_t> a16(a.size()), b16(b.size());
    f32_to_bf16(a.data(), m * k, a16.data());
    f32_to_bf16(b.data(), k * n, b16.data());
    for (int form = 0; form < 32; ++form) {
      CAPTURE(m, n, k, form);
      MatrixView left = view(a, m, k, form & 1), right = view(b, k, n, form & 2);
      const bool accumulate = form & 4;
      auto slow = whole(numbers(m * n, 3));
      const auto before = slow;
      moe::test::gemm_reference({m, n, k}, left, right, slow.data(), n, accumulate);
      left.dtype = right.dtype = Dtype::kF32RoundedToBF16;
      if (form & 8) {
        left = {a16.data(), left.row, left.column, Dtype::kBF16};
      }
      if (form & 16) {
        right = {b16.data(), right.row, right.column, Dtype::kBF16};
      }
      for (const TileKernel& kernel : bf16_tile_kernels()) {
        CAPTURE(kernel.width);
        auto found = before;
        gemm_with(kernel, {m, n, k}, left, right, found.data(), n, accumulate);
        CHECK((found == slow));
      }
    }
  }
}

// Numbers that need rounding, against sums in double; and the rest of a row after an odd k, which
// belongs to others and may be anything.
TEST_CASE("a product of bf16 rounds its sums as f32 does and reads no further than k",
          "[kernels]") {
  const int64_t m = 13, n = 70, k = 301, stride = k + 1;
  const auto a = numbers(m * stride, 1), b = numbers(n * stride, 2);
  std::vector<uint16_t> a16(a.size()), b16(b.size());
  f32_to_bf16(a.data(), m * stride, a16.data());
  f32_to_bf16(b.data(), n * stride, b16.data());
  for (int64_t i = 0; i < m; ++i) {
    a16[static_cast<size_t>(i * stride + k)] = 0x7FC0;  // NaN
  }
  for (int64_t j = 0; j < n; ++j) {
    b16[static_cast<size_t>(j * stride + k)] = 0x7F80;  // infinity
  }
  const MatrixView left{a16.data(), stride, 1, Dtype::kBF16};
  const MatrixView right{b16.data(), 1, stride, Dtype::kBF16};
  for (const TileKernel& kernel : bf16_tile_kernels()) {
    CAPTURE(kernel.width);
    std::vector<float> found(static_cast<size_t>(m * n));
    gemm_with(kernel, {m, n, k}, left, right, found.data(), n, false);
    double apart = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          sum += double{left.at(i, p)} * right.at(p, j);
        }
        const double one = std::abs(sum - found[static_cast<size_t>(i * n + j)]);
        apart = one <= apart ? apart : one;  // NaN is kept
      }
    }
    CHECK(apart <= static_cast<double>(k) * 0x1p-22);  // as of f32 above
  }
}

TEST_CASE("half precision is widened exactly, infinities, subnormals and all", "[kernels]") {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), uint16_t{0});
  std::vector<float> wide(all.size());
  f16_to_f32(all.data(), static_cast<int64_t>(all.size()), wide.data());
  for (size_t i = 0; i < all.size(); ++i) {
    const float expected = at::Half(all[i], at::Half::from_bits());
    CAPTURE(all[i], wide[i], expected);
    REQUIRE((std::bit_cast<uint32_t>(wide[i]) == std::bit_cast<uint32_t>(expected) ||
             (std::isnan(wide[i]) && std::isnan(expected))));
  }
}

TEST_CASE("gemm of numbers in f16 is gemm of what they say in f32, bit for bit", "[kernels]") {
  for (const auto& [m, n, k] : kCases) {
    const auto a = numbers(m * k, 1);
    std::vector<uint16_t> b;
    std::vector<float> wide;
    for (const float value : numbers(k * n, 2)) {
      b.push_back(at::Half(value).x);
      wide.push_back(at::Half(value));
    }
    for (const bool transposed : {false, true}) {
      CAPTURE(m, n, k, transposed);
      const MatrixView left = view(a, m, k, false);
      MatrixView right = view(wide, k, n, transposed);
      std::vector<float> expected(static_cast<size_t>(m * n)), found = expected;
      gemm({m, n, k}, left, right, expected.data(), n, false);
      right.data = b.data();
      right.dtype = Dtype::kF16;
      gemm({m, n, k}, left, right, found.data(), n, false);
      CHECK((found == expected));
    }
  }
}

TEST_CASE("gemm of a B in blocks of columns is gemm of the whole, bit for bit", "[kernels]") {
  const int threads = at::get_num_threads();
  for (const auto& [m, n, k] : kCases) {
    const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
    for (int form = 0; form < 4; ++form) {
      const bool accumulate = form & 2;
      const MatrixView left = view(a, m, k, false), right = view(b, k, n, form & 1);
      const auto before = numbers(m * n, 3);
      auto expected = before;
      gemm({m, n, k}, left, right, expected.data(), n, accumulate);
      for (const int64_t first : {int64_t{0}, n / 7, n / 2, n}) {
        CAPTURE(m, n, k, form, first);
        const std::vector<ColumnBlock> blocks = {
            {right, first}, {right.from(0, first), 0}, {right.from(0, first), n - first}};
        for (const int count : {1, 2, 3}) {
          at::set_num_threads(count);
          auto found = before;
          gemm({m, n, k}, left, blocks, found.data(), n, accumulate);
          CHECK((found == expected));
        }
        at::set_num_threads(threads);
      }
    }
  }
}

TEST_CASE("a product is the same bits for any number of threads", "[kernels]") {
  const int before = at::get_num_threads();
  // Fewer tiles of columns than threads, and as many as leave some of them idle; odd rows.
  for (const auto& [m, n, k] : {Case{256, 256, 70},
                                {257, 1408, 30},
                                {100, 64, 300},
                                {61, 130, 40},
                                {23, 64, 9},
                                {400, 5, 33}}) {
    const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
    for (int form = 0; form < 8; ++form) {
      const MatrixView left = view(a, m, k, form & 1);
      MatrixView right = view(b, k, n, form & 2);
      right.dtype = form & 4 ? Dtype::kF32RoundedToBF16 : Dtype::kF32;
      std::vector<float> expected(m * n);
      gemm_one_thread({m, n, k}, left, right, expected.data(), n, false);
      std::vector<uint16_t> rounded(m * n);
      f32_to_bf16(expected.data(), m * n, rounded.data());
      for (const int threads : {1, 2, 3, 4, 8, 16}) {
        CAPTURE(m, n, k, form, threads);
        at::set_num_threads(threads);
        std::vector<float> found(m * n);
        gemm({m, n, k}, left, right, found.data(), n, false);
        CHECK((found == expected));
        const ColumnBlock whole{right, n};
        std::vector<uint16_t> found_rounded(m * n);
        gemm_to_bf16({m, n, k}, left, ColumnBlocks(&whole, 1), found_rounded.data(), n);
        CHECK((found_rounded == rounded));
      }
      at::set_num_threads(before);
    }
  }
}

TEST_CASE("an element of a product is the same bits whatever stands beside it", "[kernels]") {
  const int64_t m = 50, n = 140, k = 300;
  const auto a = numbers(m * k, 1), b = numbers(k * n, 2);
  std::vector<float> whole(m * n), part(m * n);
  const int threads = at::get_num_threads();
  for (const bool transposed : {false, true}) {
    const MatrixView left = view(a, m, k, false), right = view(b, k, n, transposed);
    gemm_one_thread({m, n, k}, left, right, whole.data(), n, false);
    at::set_num_threads(2);
    gemm({m, n, k}, left, right, part.data(), n, false);
    at::set_num_threads(threads);
    CHECK((whole == part));
    gemm_one_thread({7, 30, k}, left.from(11, 0), right.from(0, 5), part.data(), n, false);
    for (int64_t i = 0; i < 7; ++i) {
      for (int64_t j = 0; j < 30; ++j) {
        REQUIRE(part[i * n + j] == whole[(i + 11) * n + j + 5]);
      }
    }
  }
}

TEST_CASE("product takes every type and size", "[kernels]") {
  at::manual_seed(1);
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t rows : {0, 1, 5, 40}) {
      CAPTURE(rows);
      const at::Tensor left = at::randn({rows, 24}, type), right = at::randn({40, 24}, type).t();
      at::Tensor out = at::ones({rows, 40}, type);
      product_out(out, left, right, /*accumulate=*/true);
      const at::Tensor expected = at::mm(left.to(at::kDouble), right.to(at::kDouble));
      // 24 terms of about 1, rounded to f32
      CHECK(at::allclose(out.to(at::kDouble), expected + 1, 1e-5, 1e-5));
      CHECK(at::allclose(product(left, right).to(at::kDouble), expected, 1e-5, 1e-5));
    }
  }
}
