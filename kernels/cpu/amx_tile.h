#pragma once
// A tile of 32 rows by 32 columns on the matrix unit of x86-64 (AMX-BF16), which has eight
// registers of 16 rows of 16 words: four for C, two for A, two for B. A word holds two bf16, as in
// strips of B. tests/kernels/amx_tile_test.cpp tests the order of the operands with plain loops as
// Unit, and the arithmetic on CPUs with AMX.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/cpu/gemm_tile.h"

namespace moe::kernels {

inline constexpr int64_t kAmxSide = 16;  // rows of a register; words or sums per row
inline constexpr int64_t kAmxRows = 2 * kAmxSide, kAmxVectors = 2;

using AmxSquare = std::array<float, kAmxSide * kAmxSide>;

// One tile. Unit has functions on registers C, R, A and B: zero<C>(), load<R>(from, row stride in
// words), store<R>(to, row stride in words), and multiply<C, A, B>(), which adds A B to C.
template <typename Unit>
class AmxTile {
 public:
  explicit AmxTile(const Tile& tile) : tile_(tile) {}

  void run() {
    Unit::template zero<0>();
    Unit::template zero<1>();
    Unit::template zero<2>();
    Unit::template zero<3>();
    for (int64_t p = 0; p < tile_.k; p += kAmxSide) {
      const int64_t words = std::min(kAmxSide, tile_.k - p);
      const float *a = tile_.a + p * tile_.a_k, *b = tile_.b + p * tile_.b_k;
      load<4>(a, tile_.a_row, tile_.a_k, num_rows(0), words);
      load<6>(b, tile_.b_k, 1, words, kAmxSide);
      Unit::template multiply<0, 4, 6>();
      if (is_wide()) {
        load<7>(b + kAmxSide, tile_.b_k, 1, words, kAmxSide);
        Unit::template multiply<1, 4, 7>();
      }
      if (is_high()) {
        load<5>(a + kAmxSide * tile_.a_row, tile_.a_row, tile_.a_k, num_rows(1), words);
        Unit::template multiply<2, 5, 6>();
      }
      if (is_wide() && is_high()) {
        Unit::template multiply<3, 5, 7>();
      }
    }
    store<0>(0, 0);
    store<1>(0, 1);
    store<2>(1, 0);
    store<3>(1, 1);
  }

 private:
  bool is_wide() const { return tile_.vectors > 1; }
  bool is_high() const { return tile_.rows > kAmxSide; }
  int64_t num_rows(int64_t half) const { return std::min(kAmxSide, tile_.rows - half * kAmxSide); }

  // Loads words from[i * row + j * column] for i < rows and j < columns, 0 elsewhere.
  template <int kRegister>
  void load(const float* from, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    if (rows == kAmxSide && columns == kAmxSide && column == 1) {
      return Unit::template load<kRegister>(from, row);
    }
    AmxSquare copy{};
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        copy[static_cast<size_t>(i * kAmxSide + j)] = from[i * row + j * column];
      }
    }
    Unit::template load<kRegister>(copy.data(), kAmxSide);
  }
  // Writes the sums of a register to c, or adds them to c if the tile accumulates.
  template <int kRegister>
  void store(int64_t half, int64_t vector) {
    if ((half > 0 && !is_high()) || (vector > 0 && !is_wide())) {
      return;
    }
    AmxSquare sums;
    Unit::template store<kRegister>(sums.data(), kAmxSide);
    for (int64_t i = 0; i < num_rows(half); ++i) {
      float* c = tile_.c + (half * kAmxSide + i) * tile_.c_row + vector * kAmxSide;
      for (int64_t j = 0; j < kAmxSide; ++j) {
        const float sum = sums[static_cast<size_t>(i * kAmxSide + j)];
        c[j] = tile_.accumulate ? c[j] + sum : sum;
      }
    }
  }

  const Tile& tile_;
};

// Returns the AMX kernel if the CPU has the unit and the system permits its use.
std::optional<TileKernel> amx_tile_kernel();

}  // namespace moe::kernels
