#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm_tile.h"
#include "tests/kernels/reference/gemm.h"
#include "tests/support/catch.h"

using namespace moe::kernels;
using namespace moe::test;

namespace {

MatrixView view(const std::vector<float>& values, int64_t rows, int64_t columns, bool transposed) {
  return transposed ? MatrixView{values.data(), 1, rows} : MatrixView{values.data(), columns, 1};
}

void gemm_whole(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                int64_t c_row, bool accumulate) {
  const ColumnBlock whole{b, shape.n};
  gemm(shape, a, {&whole, 1}, c, c_row, accumulate);
}

std::vector<float> product(const GemmShape& shape, const MatrixView& a, const MatrixView& b) {
  std::vector<float> c(static_cast<size_t>(shape.m * shape.n));
  gemm_whole(shape, a, b, c.data(), shape.n, /*accumulate=*/false);
  return c;
}

// Compares [m, n] matrices with rows of c_row numbers, of which those past n must be equal.
bool are_close(const std::vector<float>& a, const std::vector<float>& b, int64_t n, int64_t c_row,
               double most) {
  bool all = true;
  for (size_t i = 0; i < a.size(); ++i) {
    all &= std::abs(double{a[i]} - b[i]) <= (static_cast<int64_t>(i) % c_row < n ? most : 0);
  }
  return all;
}

}  // namespace

TEST_CASE("gemm equals plain loops in double, whichever way its matrices lie", "[kernels]") {
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
    for (int form = 0; form < 8; ++form) {
      CAPTURE(m, n, k, form);
      const MatrixView left = view(a, m, k, form & 1), right = view(b, k, n, form & 2);
      const bool accumulate = form & 4;
      const int64_t c_row = n + 3;  // what lies between the rows stays
      auto fast = random_floats(m * c_row, 3), slow = fast;
      const auto before = fast;
      gemm_whole({m, n, k}, left, right, fast.data(), c_row, accumulate);
      gemm_reference({m, n, k}, left, right, slow.data(), c_row, accumulate);
      // k products of numbers below 1 and their sums, each rounded: k * k * 2^-24 at most, in
      // practice its root.
      const double most = (1 + static_cast<double>(k)) * 0x1p-22;
      CHECK(are_close(fast, slow, n, c_row, most));
      for (const auto& kernel : tile_kernels()) {  // of each instruction set
        CAPTURE(kernel.width);
        auto other = before;
        gemm_with(kernel, {m, n, k}, left, right, other.data(), c_row, accumulate);
        CHECK(are_close(other, slow, n, c_row, most));
      }
    }
  }
}

TEST_CASE("gemm of numbers in bf16 is gemm of what they say in f32, bit for bit", "[kernels]") {
  const TileKernel& f32 = tile_kernels().front();
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
    const auto a16 = in_bf16(a), b16 = in_bf16(b);
    const auto widened = [](const std::vector<uint16_t>& bits) {
      std::vector<float> wide(bits.size());
      bf16_to_f32(bits.data(), static_cast<int64_t>(bits.size()), wide.data());
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
      left.dtype = at::kBFloat16;
      right.rounds_to_bf16 = true;
      gemm_with(f32, {m, n, k}, left, right, found.data(), n, false);
      CHECK((found == expected));
      found = product({m, n, k}, left, right);
      left.data = a.data();
      right.data = b16.data();
      std::swap(left.dtype, right.dtype);
      std::swap(left.rounds_to_bf16, right.rounds_to_bf16);
      std::vector<uint16_t> rounded(expected.size());
      const ColumnBlock whole{right, n};
      gemm_to_bf16({m, n, k}, left, {&whole, 1}, rounded.data(), n);
      CHECK((rounded == in_bf16(found)));
    }
  }
}

TEST_CASE("kernels of bf16 equal plain loops, for operands of either dtype and order",
          "[kernels]") {
  for (const TileKernel& kernel : bf16_tile_kernels()) {
    check_bf16_kernel(kernel);
  }
}

// Numbers that need rounding, against sums in double; and the rest of a row after an odd k, which
// belongs to others and may be anything.
TEST_CASE("a product of bf16 rounds its sums as f32 does and reads no further than k",
          "[kernels]") {
  const int64_t m = 13, n = 70, k = 301, stride = k + 1;
  const auto a = random_floats(m * stride, 1), b = random_floats(n * stride, 2);
  auto a16 = in_bf16(a), b16 = in_bf16(b);
  for (int64_t i = 0; i < m; ++i) {
    a16[static_cast<size_t>(i * stride + k)] = 0x7FC0;  // NaN
  }
  for (int64_t j = 0; j < n; ++j) {
    b16[static_cast<size_t>(j * stride + k)] = 0x7F80;  // infinity
  }
  const MatrixView left{a16.data(), stride, 1, at::kBFloat16};
  const MatrixView right{b16.data(), 1, stride, at::kBFloat16};
  for (const TileKernel& kernel : bf16_tile_kernels()) {
    CAPTURE(kernel.width);
    std::vector<float> found(static_cast<size_t>(m * n)), slow = found;
    gemm_with(kernel, {m, n, k}, left, right, found.data(), n, false);
    gemm_reference({m, n, k}, left, right, slow.data(), n, false);
    CHECK(are_close(found, slow, n, n, (1 + static_cast<double>(k)) * 0x1p-22));  // as of f32 above
  }
}

TEST_CASE("gemm of numbers in f16 is gemm of what they say in f32, bit for bit", "[kernels]") {
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1);
    std::vector<uint16_t> b;
    std::vector<float> wide;
    for (const float value : random_floats(k * n, 2)) {
      b.push_back(at::Half(value).x);
      wide.push_back(at::Half(value));
    }
    for (const bool transposed : {false, true}) {
      CAPTURE(m, n, k, transposed);
      const MatrixView left = view(a, m, k, false);
      MatrixView right = view(wide, k, n, transposed);
      const auto expected = product({m, n, k}, left, right);
      right.data = b.data();
      right.dtype = at::kHalf;
      CHECK((product({m, n, k}, left, right) == expected));
    }
  }
}

TEST_CASE("gemm of a B in blocks of columns is gemm of the whole, bit for bit", "[kernels]") {
  const int threads = at::get_num_threads();
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
    for (int form = 0; form < 4; ++form) {
      const bool accumulate = form & 2;
      const MatrixView left = view(a, m, k, false), right = view(b, k, n, form & 1);
      const auto before = random_floats(m * n, 3);
      auto expected = before;
      gemm_whole({m, n, k}, left, right, expected.data(), n, accumulate);
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
  for (const auto& [m, n, k] : {GemmShape{96, 256, 70},
                                {57, 1408, 30},
                                {100, 64, 300},
                                {61, 130, 40},
                                {23, 64, 9},
                                {200, 5, 33}}) {
    const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
    for (int form = 0; form < 8; ++form) {
      const MatrixView left = view(a, m, k, form & 1);
      MatrixView right = view(b, k, n, form & 2);
      right.rounds_to_bf16 = form & 4;
      std::vector<float> expected(m * n);
      gemm_one_thread({m, n, k}, left, right, expected.data(), n, false);
      const std::vector<uint16_t> rounded = in_bf16(expected);
      for (const int threads : {1, 2, 3, 8}) {
        CAPTURE(m, n, k, form, threads);
        at::set_num_threads(threads);
        CHECK((product({m, n, k}, left, right) == expected));
        const ColumnBlock whole{right, n};
        std::vector<uint16_t> found_rounded(m * n);
        gemm_to_bf16({m, n, k}, left, ColumnBlocks(&whole, 1), found_rounded.data(), n);
        CHECK((found_rounded == rounded));
      }
      at::set_num_threads(before);
    }
  }
}

TEST_CASE("an element of a product is the same bits in any larger product", "[kernels]") {
  const int64_t m = 50, n = 140, k = 300;
  const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
  for (const bool transposed : {false, true}) {
    const MatrixView left = view(a, m, k, false), right = view(b, k, n, transposed);
    const auto whole = product({m, n, k}, left, right);
    const auto part = product({7, 30, k}, left.from(11, 0), right.from(0, 5));
    bool all = true;
    for (int64_t i = 0; i < 7; ++i) {
      all &= std::equal(part.begin() + i * 30, part.begin() + (i + 1) * 30,
                        whole.begin() + (i + 11) * n + 5);
    }
    CHECK(all);
  }
}
