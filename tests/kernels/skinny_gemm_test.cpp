#include "kernels/cpu/skinny_gemm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/reference/gemm.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace moe::kernels;
using namespace moe::test;

namespace {

std::vector<uint16_t> in_f16(const std::vector<float>& wide) {
  std::vector<uint16_t> bits;
  for (const float value : wide) {
    bits.push_back(at::Half(value).x);
  }
  return bits;
}

// b [k, n] with contiguous columns in blocks of 1, 2, 3, .. columns.
std::vector<ColumnBlock> ever_wider(const MatrixView& b, int64_t n) {
  std::vector<ColumnBlock> blocks;
  for (int64_t first = 0; first < n;) {
    const int64_t columns = std::min(static_cast<int64_t>(blocks.size()) + 1, n - first);
    blocks.push_back({b.from(0, first), columns});
    first += columns;
  }
  return blocks;
}

}  // namespace

TEST_CASE("a skinny GEMM equals plain loops in double", "[kernels]") {
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
        REQUIRE(can_use_skinny_gemm(shape, right));
        const int64_t c_row = n + 2;  // what lies between the rows stays
        const auto before = random_floats(m * c_row, 3);
        auto slow = before;
        gemm_reference(shape, {a.data(), k, 1}, right, slow.data(), c_row, false);
        const auto kernels = static_cast<int64_t>(few_rows_kernels().size());
        for (int64_t kernel = 0; kernel < kernels; ++kernel) {
          CAPTURE(kernel);
          auto fast = before, in_blocks = before;
          skinny_gemm_with(kernel, shape, a.data(), {&whole, 1}, fast.data(), c_row);
          skinny_gemm_with(kernel, shape, a.data(), ever_wider(right, n), in_blocks.data(), c_row);
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

TEST_CASE("a skinny GEMM is the same bits with any number of threads", "[kernels]") {
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

TEST_CASE("a row of a skinny GEMM has the bits of gemm() for any other rows", "[kernels]") {
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
          skinny_gemm_with(static_cast<int64_t>(kernel), {m, n, k}, a.data() + first * k,
                           {&whole, 1}, some.data(), n);
          CHECK(std::equal(some.begin(), some.end(), all.begin() + first * n));
        }
      }
    }
  }
}
