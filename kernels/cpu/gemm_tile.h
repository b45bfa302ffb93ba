#pragma once
// One tile of a matrix product, held in registers while k runs: 6 rows by one to four vectors. The
// registers of the instruction set that the machine has are chosen when the program runs.

#include <cstdint>
#include <vector>

namespace moe::kernels {

inline constexpr int64_t kTileRows = 6;

struct Tile {
  int64_t rows;     // 1 .. kTileRows
  int64_t vectors;  // 1, 2 or 4, at most TileKernel::vectors
  int64_t k;
  const float* a;  // element (i, p) at a[i * a_row + p * a_k]
  int64_t a_row, a_k;
  const float* b = nullptr;  // element (p, j) at b[p * b_k + j]
  int64_t b_k = 0;
  float* c = nullptr;  // element (i, j) at c[i * c_row + j]
  int64_t c_row = 0;
  bool accumulate = false;
};

struct TileKernel {
  int64_t width;    // floats of a vector
  int64_t vectors;  // of the widest tile
  void (*run)(const Tile& tile);
};

// Those that this machine can run, of the widest vectors first.
const std::vector<TileKernel>& tile_kernels();

struct GemmShape;
struct MatrixView;

// gemm_one_thread (kernels/cpu/gemm.h), which takes the first of them, by any.
void gemm_with(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
               const MatrixView& b, float* c, int64_t c_row, bool accumulate);

}  // namespace moe::kernels
