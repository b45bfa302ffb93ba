#pragma once
// Matrix products as plain loops whose sums are in double, and cases of gemm().

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"
#include "tests/support/catch.h"

namespace moe::test {

// 1, 31, 33 and whole tiles; widths that no vector divides; more than one block of each kind.
inline const std::vector<kernels::GemmShape> kGemmShapes = {
    {0, 5, 3},    {1, 1, 1},      {3, 7, 0},      {1, 33, 31},   {6, 64, 256}, {16, 16, 32},
    {31, 17, 33}, {33, 100, 300}, {101, 75, 513}, {97, 600, 40}, {5, 1030, 9}};

// Numbers in [-1, 1).
inline std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) / (1 << 23);
  }
  return values;
}

inline std::vector<uint16_t> in_bf16(const std::vector<float>& wide) {
  std::vector<uint16_t> bits(wide.size());
  kernels::f32_to_bf16(wide.data(), static_cast<int64_t>(wide.size()), bits.data());
  return bits;
}

using kernels::GemmShape;
using kernels::MatrixView;

inline void gemm_reference(const GemmShape& shape, const MatrixView& a, const MatrixView& b,
                           float* c, int64_t c_row, bool accumulate) {
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double sum = accumulate ? c[i * c_row + j] : 0.0;
      for (int64_t p = 0; p < shape.k; ++p) {
        sum += double{a.at(i, p)} * double{b.at(p, j)};
      }
      c[i * c_row + j] = static_cast<float>(sum);
    }
  }
}

// Runs a tile of bf16 words as plain loops, on any CPU.
inline void run_bf16_tile(const kernels::Tile& tile) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < 4 * tile.vectors; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < tile.k; ++p) {
        const auto left = std::bit_cast<uint32_t>(tile.a[i * tile.a_row + p * tile.a_k]);
        const auto right = std::bit_cast<uint32_t>(tile.b[p * tile.b_k + j]);
        sum += std::bit_cast<float>(left << 16) * std::bit_cast<float>(right << 16);
        sum += std::bit_cast<float>(left & 0xFFFF0000U) * std::bit_cast<float>(right & 0xFFFF0000U);
      }
      float& c = tile.c[i * tile.c_row + j];
      c = tile.accumulate ? c + sum : sum;
    }
  }
}

// Returns the bf16 kernels of this CPU, and one that any CPU can run.
inline std::vector<kernels::TileKernel> all_bf16_kernels() {
  auto all = kernels::bf16_tile_kernels();
  all.push_back({4, 2, run_bf16_tile, kernels::Word::kTwoBF16});
  return all;
}

// Checks a kernel of bf16 products for operands in f32 and bf16, transposed or not, and C
// overwritten or added to. Sums of whole numbers are exact in any order: the bits are equal.
inline void check_bf16_kernel(const kernels::TileKernel& kernel) {
  const auto whole_numbers = [](int64_t count, uint64_t seed) {
    std::vector<float> values = random_floats(count, seed);
    for (float& value : values) {
      value = std::round(value * 9);
    }
    return values;
  };
  for (const auto& [m, n, k] : kGemmShapes) {
    const auto a = whole_numbers(m * k, 1), b = whole_numbers(k * n, 2);
    const auto a16 = in_bf16(a), b16 = in_bf16(b);
    for (int form = 0; form < 32; ++form) {
      CAPTURE(kernel.width, m, n, k, form);
      const bool accumulate = form & 4;
      MatrixView left{a.data(), form & 1 ? 1 : k, form & 1 ? m : 1, at::kFloat,
                      /*rounds_to_bf16=*/true};
      MatrixView right{b.data(), form & 2 ? 1 : n, form & 2 ? k : 1, at::kFloat,
                       /*rounds_to_bf16=*/true};
      auto slow = whole_numbers(m * n, 3), found = slow;
      gemm_reference({m, n, k}, left, right, slow.data(), n, accumulate);
      if (form & 8) {
        left = {a16.data(), left.row, left.column, at::kBFloat16};
      }
      if (form & 16) {
        right = {b16.data(), right.row, right.column, at::kBFloat16};
      }
      gemm_with(kernel, {m, n, k}, left, right, found.data(), n, accumulate);
      CHECK((found == slow));
    }
  }
}

}  // namespace moe::test
