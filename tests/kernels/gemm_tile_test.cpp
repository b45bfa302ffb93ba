// The tiles that this machine can run. Uses no LibTorch, so that tests/arm64.sh can build and run
// this file alone for another processor.

#include "kernels/cpu/gemm_tile.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/catch.h"

using moe::kernels::kTileRows;
using moe::kernels::Tile;
using moe::kernels::tile_kernels;
using moe::kernels::TileKernel;

namespace {

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) / (1 << 23);
  }
  return values;
}

// Operands of one tile, with gaps between their rows.
struct Operands {
  int64_t columns, a_row, a_k, b_k, c_row;
  std::vector<float> a, b, c;

  Operands(const TileKernel& kernel, int64_t vectors, int64_t k, bool a_along_k)
      : columns(vectors * kernel.width),
        a_row(a_along_k ? k + 2 : 1),
        a_k(a_along_k ? 1 : kTileRows + 1),
        b_k(columns + 3),
        c_row(columns + 5),
        a(numbers(kTileRows * (k + 2) + k, 1)),
        b(numbers((k + 1) * b_k, 2)),
        c(numbers(kTileRows * c_row, 3)) {}

  Tile tile(int64_t rows, int64_t vectors, int64_t k, float* to, bool accumulate) const {
    return {rows, vectors, k, a.data(), a_row, a_k, b.data(), b_k, to, c_row, accumulate};
  }

  // Plain loops over the same operands, each step rounded: once by std::fma, or twice.
  std::vector<float> expected(int64_t rows, int64_t k, bool accumulate, bool fused) const {
    std::vector<float> out = c;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          const float left = a[i * a_row + p * a_k], right = b[p * b_k + j];
          const volatile float product = left * right;  // volatile: not joined with the addition
          sum = fused ? std::fma(left, right, sum) : sum + product;
        }
        float& element = out[static_cast<size_t>(i * c_row + j)];
        element = accumulate ? sum + element : sum;
      }
    }
    return out;
  }
};

// Calls each(operands, rows, vectors, k, accumulate) for tiles of every form that a kernel has.
template <typename Each>
void for_every_tile(const TileKernel& kernel, Each each) {
  for (const int64_t k : {0, 1, 2, 3, 31, 33, 256}) {
    for (int64_t vectors = 1; vectors <= kernel.vectors; vectors *= 2) {
      for (const bool a_along_k : {false, true}) {
        const Operands operands(kernel, vectors, k, a_along_k);
        for (int64_t rows = 1; rows <= kTileRows; ++rows) {
          each(operands, rows, vectors, k, false);
          each(operands, rows, vectors, k, true);
        }
      }
    }
  }
}

}  // namespace

// A product therefore has equal bits for any number of threads and any neighbours.
TEST_CASE("a tile adds in the order of k and rounds the same way in every form", "[kernels]") {
  for (const TileKernel& kernel : tile_kernels()) {
    CAPTURE(kernel.width, kernel.vectors);
    int tiles = 0, fused = 0, apart = 0;
    for_every_tile(kernel, [&](const Operands& operands, int64_t rows, int64_t vectors, int64_t k,
                               bool accumulate) {
      std::vector<float> found = operands.c;
      kernel.run(operands.tile(rows, vectors, k, found.data(), accumulate));
      ++tiles;
      fused += found == operands.expected(rows, k, accumulate, true);
      apart += found == operands.expected(rows, k, accumulate, false);
    });
    CAPTURE(tiles, fused, apart);
    CHECK((fused == tiles || apart == tiles));
  }
}
