#pragma once
// Packs blocks of operands in the order in which tiles read them (kernels/cpu/gemm_tile.h), rounded
// or widened to the words of the kernel. Strides are in words, sizes in elements. Words are
// declared as float.

#include <span>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"

namespace moe::kernels {

// A strip of B: the columns of one tile.
struct Strip {
  const float* data;
  int64_t stride;   // between rows
  int64_t first;    // column in the block
  int64_t columns;  // used columns
  int64_t vectors;  // width, padding included
};

// Maximum number of rows of A in a block: a multiple of all tile heights.
inline constexpr int64_t kRowBlock = 16 * kTileRows;
static_assert(kRowBlock % kMaxTileRows == 0);

// Returns the number of floats that pack_strips() needs in its buffer for b [k, n] or smaller.
int64_t strip_numel(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k);

// Returns the strips of b [k, n]. Strips that cannot be read in place are written to `buffer`.
std::vector<Strip> pack_strips(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k,
                               float* buffer);

// Rows of A, grouped by tile height: element (i, p) of a tile that starts at `from` is
// from[i * row + p * k], and the next tile starts at from + tile.
struct RowsOfA {
  const float* data;
  int64_t row, k, tile;
};

// Returns true if a block of A with depth k is copied before its products. If it is false for the
// whole depth, it is false for every block of kGemmDepth.
bool is_packed(const TileKernel& kernel, const MatrixView& a, int64_t k);

// Returns the rows of a [rows, k], in place or packed in `buffer`. REQUIRES: rows <= kRowBlock, and
// a buffer of num_words(k) times the rows, rounded up to the tile height.
RowsOfA pack_rows(const TileKernel& kernel, const MatrixView& a, int64_t rows, int64_t k,
                  float* buffer);

// Computes c = a b for the rows of `a` and the columns of the strips, or adds the product if
// `accumulate`. c has a row stride of c_row; k is in words. `strips` may be a subset of the strips
// of B, and may start at a later word of its depth.
void multiply_row_block(const TileKernel& kernel, const RowsOfA& a, int64_t rows, int64_t k,
                        std::span<const Strip> strips, float* c, int64_t c_row, bool accumulate);

// Transposes four rows of length k: to[p * width + r] = from[r * stride + p].
void transpose_four_rows(const float* from, int64_t stride, int64_t k, int64_t width, float* to);

}  // namespace moe::kernels
