#pragma once
// One tile of a matrix product, held in registers while k runs: 6 rows by one to four vectors, or
// 32 rows by two where there is a matrix unit (kernels/cpu/amx_tile.h). The
// registers of the instruction set that the machine has are chosen when the program runs. A and B
// are read in words of four bytes, which hold one number of f32 or two of bf16.

#include <cstdint>
#include <vector>

namespace moe::kernels {

inline constexpr int64_t kTileRows = 6;       // of those that compute in vectors
inline constexpr int64_t kMostTileRows = 32;  // of any

enum class Word {
  kF32,
  kTwoBF16,  // numbers 2 p and 2 p + 1 along k, the first in the lower half; 0 past the last
};

// Words along k that hold k numbers.
constexpr int64_t words_of(Word word, int64_t k) { return word == Word::kF32 ? k : (k + 1) / 2; }

struct Tile {
  int64_t rows;     // 1 .. TileKernel::rows
  int64_t vectors;  // 1, 2 or 4, at most TileKernel::vectors
  int64_t k;        // in words, as all that follows but c
  const float* a;   // element (i, p) at a[i * a_row + p * a_k]
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
  Word word = Word::kF32;
  int64_t rows = kTileRows;   // of the highest tile
  void (*begin)() = nullptr;  // by the thread that runs tiles, before the first
  void (*end)() = nullptr;    // and behind the last

  // Whether `run` wants the words of a row of A next to each other.
  bool reads_along_k() const { return rows != kTileRows; }
};

// While it lives, this thread may run tiles of the kernel.
class KernelUse {
 public:
  explicit KernelUse(const TileKernel& kernel) : end_(kernel.end) {
    if (kernel.begin != nullptr) {
      kernel.begin();
    }
  }
  ~KernelUse() {
    if (end_ != nullptr) {
      end_();
    }
  }
  KernelUse(const KernelUse&) = delete;
  KernelUse& operator=(const KernelUse&) = delete;

 private:
  void (*end_)();
};

// Those of f32 that this machine can run, of the widest vectors first.
const std::vector<TileKernel>& tile_kernels();

// Those of bf16, whose sums are f32: where the processor multiplies bf16 its own first, that of a
// matrix unit before that of vectors; and last one that any can run, which widens numbers as it
// multiplies and is slower than f32.
const std::vector<TileKernel>& bf16_tile_kernels();

// The first of those where the processor multiplies bf16, else null.
const TileKernel* bf16_product_kernel();

struct GemmShape;
struct MatrixView;

// The one that makes a product of these operands: bf16_product_kernel() where both are numbers of
// bf16 and there is one, else the first of f32.
const TileKernel& tile_kernel_for(const MatrixView& a, const MatrixView& b);

// gemm_one_thread (kernels/cpu/gemm.h) by any of them; one of bf16 wants operands of bf16, stored
// or rounded.
void gemm_with(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
               const MatrixView& b, float* c, int64_t c_row, bool accumulate);

}  // namespace moe::kernels
