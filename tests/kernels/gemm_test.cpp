#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/skinny_gemm.h"
#include "tests/kernels/reference/gemm.h"
#include "tests/support/threads.h"

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

std::vector<uint16_t> in_f16(const std::vector<float>& wide) {
  std::vector<uint16_t> bits;
  for (const float value : wide) {
    bits.push_back(at::Half(value).x);
  }
  return bits;
}

// b [k, n] with contiguous columns in blocks of 1, 2, 3, .. columns.
std::vector<ColumnBlock> widening_blocks(const MatrixView& b, int64_t n) {
  std::vector<ColumnBlock> blocks;
  for (int64_t first = 0; first < n;) {
    const int64_t columns = std::min(static_cast<int64_t>(blocks.size()) + 1, n - first);
    blocks.push_back({b.from(0, first), columns});
    first += columns;
  }
  return blocks;
}

}  // namespace

TEST_CASE("gemm equals plain loops in double, for transposed operands too") {
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
    for (int form = 0; form < 8; ++form) {
      CAPTURE(m, n, k, form);
      const MatrixView left = view(a, m, k, form & 1), right = view(b, k, n, form & 2);
      const bool accumulate = form & 4;
      const int64_t c_row = n + 3;  // the gap between rows is not written
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

TEST_CASE("gemm of bf16 operands equals gemm of the same values in f32, bit for bit") {
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

TEST_CASE("kernels of bf16 equal plain loops, for operands of either dtype and order") {
  for (const TileKernel& kernel : all_bf16_kernels()) {
    check_bf16_kernel(kernel);
  }
}

// Numbers that need rounding, against sums in double. The rest of a row after an odd k may hold any
// values.
TEST_CASE("a product of bf16 rounds its sums as f32 does and reads no further than k") {
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
  for (const TileKernel& kernel : all_bf16_kernels()) {
    CAPTURE(kernel.width);
    std::vector<float> found(static_cast<size_t>(m * n)), slow = found;
    gemm_with(kernel, {m, n, k}, left, right, found.data(), n, false);
    gemm_reference({m, n, k}, left, right, slow.data(), n, false);
    CHECK(are_close(found, slow, n, n, (1 + static_cast<double>(k)) * 0x1p-22));  // as of f32 above
  }
}

TEST_CASE("gemm of f16 operands equals gemm of the same values in f32, bit for bit") {
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = random_floats(m * k, 1);
    auto wide = random_floats(k * n, 2);
    const auto b = in_f16(wide);
    std::transform(wide.begin(), wide.end(), wide.begin(), [](float x) { return at::Half(x); });
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

TEST_CASE("gemm of a B in blocks of columns is gemm of the whole, bit for bit") {
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

TEST_CASE("a product has equal bits for any number of threads") {
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

TEST_CASE("an element of a product has equal bits in any larger product") {
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

TEST_CASE("a skinny GEMM equals plain loops in double") {
  for (const int64_t m : {0, 1, 2, 5, 6, 13, 48}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 4}, {1, 1}, {3, 0}, {5, 31}, {31, 33}, {1000, 70}, {7, 5000}, {64, 512}}) {
      CAPTURE(m, n, k);
      const auto a = random_floats(m * k, 1);
      for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
        const auto wide = random_floats(k * n, 2);
        const auto b = dtype == at::kBFloat16 ? in_bf16(wide) : in_f16(wide);
        const bool is_f32 = dtype == at::kFloat;
        const MatrixView right{is_f32 ? static_cast<const void*>(wide.data()) : b.data(), 1, k,
                               dtype};
        const ColumnBlock whole{right, n};
        const GemmShape shape{m, n, k};
        const int64_t c_row = n + 2;  // the gap between rows is not written
        const auto before = random_floats(m * c_row, 3);
        auto slow = before;
        gemm_reference(shape, {a.data(), k, 1}, right, slow.data(), c_row, false);
        for (size_t kernel = 0; kernel < few_rows_kernels().size(); ++kernel) {
          CAPTURE(kernel);
          auto fast = before, in_blocks = before;
          skinny_gemm(shape, a.data(), {&whole, 1}, fast.data(), c_row, kernel);
          skinny_gemm(shape, a.data(), widening_blocks(right, n), in_blocks.data(), c_row, kernel);
          CHECK((in_blocks == fast));
          double apart = 0;
          for (size_t i = 0; i < fast.size(); ++i) {
            apart = std::max<double>(apart, std::abs(fast[i] - slow[i]));
          }
          // k products of numbers below 1 and their sums, each rounded: k * k * 2^-24 at most, in
          // practice its root.
          CHECK(apart <= (1 + static_cast<double>(k)) * 0x1p-22);
        }
      }
    }
  }
}

TEST_CASE("a skinny GEMM has equal bits with any number of threads") {
  const int64_t m = 3, n = 3000, k = 100;
  const auto a = random_floats(m * k, 1);
  const auto b = in_bf16(random_floats(k * n, 2));
  const ColumnBlock right{{b.data(), 1, k, at::kBFloat16}, n};
  by_any_threads([&] {
    const at::Tensor c = at::empty({m, n});
    skinny_gemm({m, n, k}, a.data(), {&right, 1}, c.data_ptr<float>(), n);
    return std::vector{c};
  });
}

TEST_CASE("a row of a skinny GEMM has the bits of gemm() for any other rows") {
  const int64_t n = 37;
  for (const int64_t k : {7, 70, 256, 600, 4096}) {
    const auto a = random_floats(kMaxSkinnyRows * k, 1);
    const auto wide = random_floats(k * n, 2);
    const auto b = in_bf16(wide);
    for (const MatrixView& right :
         {MatrixView{b.data(), 1, k, at::kBFloat16}, MatrixView{wide.data(), 1, k, at::kFloat}}) {
      const ColumnBlock whole{right, n};
      std::vector<float> all(static_cast<size_t>(kMaxSkinnyRows * n));
      gemm({kMaxSkinnyRows, n, k}, {a.data(), k, 1}, {&whole, 1}, all.data(), n,
           /*accumulate=*/false);
      for (int64_t m = 1; m <= kMaxSkinnyRows; ++m) {
        const int64_t first = kMaxSkinnyRows - m;
        std::vector<float> some(static_cast<size_t>(m * n));
        for (size_t kernel = 0; kernel < few_rows_kernels().size(); ++kernel) {
          if (kernel > 0 && !few_rows_kernels()[kernel].uses_fma) {
            continue;  // rounds products, too
          }
          CAPTURE(m, k, kernel);
          skinny_gemm({m, n, k}, a.data() + first * k, {&whole, 1}, some.data(), n, kernel);
          CHECK(std::equal(some.begin(), some.end(), all.begin() + first * n));
        }
      }
    }
  }
}
