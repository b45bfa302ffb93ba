#pragma once
// One tile of a matrix product in registers: 6 rows by one to four vectors, or 32 rows by two with
// a matrix unit (kernels/cpu/amx_tile.h). The instruction set is chosen at run time. A and B are
// read in words of four bytes: one f32 or two bf16.

#include <cstdint>
#include <vector>

namespace moe::kernels {

inline constexpr int64_t kTileRows = 6;      // of vector kernels
inline constexpr int64_t kMaxTileRows = 32;  // of all kernels

enum class Word {
  kF32,
  kTwoBF16,  // elements 2 p and 2 p + 1 along k, the first in the lower half; padded with 0
};

// Returns the number of words along k that hold k elements.
constexpr int64_t num_words(Word word, int64_t k) { return word == Word::kF32 ? k : (k + 1) / 2; }

struct Tile {
  int64_t rows;     // 1 .. TileKernel::rows
  int64_t vectors;  // 1, 2 or 4, at most TileKernel::vectors
  int64_t k;        // in words, as all strides but c_row
  const float* a;   // element (i, p) at a[i * a_row + p * a_k]
  int64_t a_row, a_k;
  const float* b = nullptr;  // element (p, j) at b[p * b_k + j]
  int64_t b_k = 0;
  float* c = nullptr;  // element (i, j) at c[i * c_row + j]
  int64_t c_row = 0;
  bool accumulate = false;
};

struct TileKernel {
  int64_t width;    // floats per vector
  int64_t vectors;  // maximum per row of a tile
  void (*run)(const Tile& tile);
  Word word = Word::kF32;
  int64_t rows = kTileRows;   // maximum of a tile
  void (*begin)() = nullptr;  // called by a thread before its first tile
  void (*end)() = nullptr;    // called after its last tile

  // Returns true if `run` requires contiguous words in each row of A.
  bool reads_along_k() const { return rows != kTileRows; }
};

// Scope in which this thread may run tiles of the kernel.
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

// Returns the f32 kernels that this CPU supports, widest vectors first.
const std::vector<TileKernel>& tile_kernels();

// Returns the bf16 kernels that this CPU supports, which sum in f32: matrix unit, then vectors.
const std::vector<TileKernel>& bf16_tile_kernels();

// Returns the first bf16 kernel, or null if this CPU has none.
const TileKernel* bf16_product_kernel();

struct GemmShape;
struct MatrixView;

// gemm_one_thread() (kernels/cpu/gemm.h) with a given kernel. A bf16 kernel requires operands that
// are stored in bf16 or rounded to it.
void gemm_with(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
               const MatrixView& b, float* c, int64_t c_row, bool accumulate);

}  // namespace moe::kernels
