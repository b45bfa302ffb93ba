#pragma once
// Packed blocks of an operand as the tiles of a product read them (kernels/cpu/gemm_tile.h): words
// of the kernel, f32 or two of bf16, whatever the operand is stored as, and in order. Rounding and
// widening happen here, on pieces that stay in the caches, so that products in bf16 make no copies
// of their operands. Strides are in words, sizes in numbers; a float stands for any word.

#include <span>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"

namespace moe::kernels {

// One strip of B as tiles read it.
struct Strip {
  const float* data;
  int64_t stride;   // between its rows
  int64_t first;    // column in the block
  int64_t columns;  // that are wanted of it
  int64_t vectors;
};

// Of A that are taken at a time, at most: whole tiles of each height.
inline constexpr int64_t kRowsOfBlock = 16 * kTileRows;
static_assert(kRowsOfBlock % kMostTileRows == 0);

// Floats that `strips_of` wants of its buffer for blocks of b of up to n columns and k rows.
int64_t strip_floats(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k);

// The strips of b [k, n]; those that cannot be read where they lie are written to `buffer`.
std::vector<Strip> strips_of(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k,
                             float* buffer);

// Rows of A as many at a time as tiles are high: element (i, p) of a tile that begins at `from` is
// from[i * row + p * k], and the next tile begins `tile` floats after it.
struct RowsOfA {
  const float* data;
  int64_t row, k, tile;
};

// Whether blocks of A are copied before their products; k the whole depth, or even.
bool is_gathered(const TileKernel& kernel, const MatrixView& a, int64_t k);

// a [rows, k], at most kRowsOfBlock of them, where it lies or in `buffer`, which has room for the
// words of k times the rows rounded up to those of a tile.
RowsOfA rows_of(const TileKernel& kernel, const MatrixView& a, int64_t rows, int64_t k,
                float* buffer);

// c [rows, columns of the strips], whose rows lie c_row floats apart, = a b, or added to it; k in
// words. The strips may be some of those of B, or begin at a later word of its depth.
void multiply_rows(const TileKernel& kernel, const RowsOfA& a, int64_t rows, int64_t k,
                   std::span<const Strip> strips, float* c, int64_t c_row, bool accumulate);

}  // namespace moe::kernels
