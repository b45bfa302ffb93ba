// Three loops around the tile: blocks of columns, depth and rows. A block of B stays in the L2
// cache for all rows, and the rows of A of one tile stay in the L1.

#include "kernels/cpu/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Returns bf16_product_kernel() if both operands are bf16 and there is one, else the first f32
// kernel.
const TileKernel& tile_kernel_for(const MatrixView& a, const MatrixView& b) {
  const TileKernel* bf16 = bf16_product_kernel();
  return bf16 != nullptr && a.is_bf16() && b.is_bf16() ? *bf16 : tile_kernels().front();
}

// Returns the number of floats of one packed block, rounded up to a cache line.
int64_t block_floats(const TileKernel& kernel, const ColumnBlock& block, int64_t k) {
  return (strip_numel(kernel, block.b, std::min(block.columns, kGemmColumns), k) + 15) / 16 * 16;
}

struct PackBuffers {
  float *strips, *rows, *extra;
};

// Allocates memory for packed blocks of both operands and `extra` floats.
PackBuffers pack_buffers(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
                         ColumnBlocks b, int64_t extra, Scratch& scratch) {
  const int64_t max_k = std::min(shape.k, kGemmDepth);
  const int64_t row = is_packed(kernel, a, shape.k) ? num_words(kernel.word, max_k) : 0;
  int64_t strips = 0;
  for (const ColumnBlock& block : b) {
    strips += block_floats(kernel, block, max_k);
  }
  float* buffer = scratch.floats(strips + row * kRowBlock + extra);
  return {buffer, buffer + strips, buffer + strips + row * kRowBlock};
}

// Packs rows p .. p + depth - 1 of all blocks.
std::vector<Strip> pack_column_blocks(const TileKernel& kernel, ColumnBlocks b, int64_t p,
                                      int64_t depth, float* buffer) {
  std::vector<Strip> all;
  int64_t column = 0;
  for (const ColumnBlock& block : b) {
    for (Strip strip : pack_strips(kernel, block.b.from(p, 0), block.columns, depth, buffer)) {
      strip.first += column;
      all.push_back(strip);
    }
    column += block.columns;
    buffer += block_floats(kernel, block, depth);
  }
  return all;
}

// Multiplies one block of columns, which may be stored in several matrices. If `consume` is not
// empty, calls consume(first, rows, sums) when the sums of these rows are complete. With `reuses_c`
// each block of rows overwrites the sums of the previous block, which requires k <= kGemmDepth.
void multiply_columns(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
                      ColumnBlocks b, const PackBuffers& buffers, float* c, int64_t c_row,
                      bool accumulate, const RowConsumer& consume = {}, bool reuses_c = false) {
  const int64_t m = shape.m, k = shape.k;
  for (int64_t p = 0; p < k; p += kGemmDepth) {
    const int64_t depth = std::min(kGemmDepth, k - p);
    const auto strips = pack_column_blocks(kernel, b, p, depth, buffers.strips);
    for (int64_t i = 0; i < m; i += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, m - i);
      const RowsOfA packed = pack_rows(kernel, a.from(i, p), rows, depth, buffers.rows);
      float* sums = reuses_c ? c : c + i * c_row;
      multiply_row_block(kernel, packed, rows, num_words(kernel.word, depth), strips, sums, c_row,
                         accumulate || p > 0);
      if (consume && p + depth == k) {
        consume(i, rows, sums);
      }
    }
  }
}

// Part of a product that one thread computes: the block of c that starts at (row, column).
struct Share {
  GemmShape shape;
  MatrixView a, b;
  int64_t row, column;
};

// Calls each(begin, end) for ranges of the parts 0 .. parts - 1, in parallel.
template <typename Each>
void parallel_parts(int64_t parts, Each each) {
  at::parallel_for(0, parts, blocks(parts, at::get_num_threads()), each);
}

// Range of tiles of columns, which are numbered consecutively over all blocks.
struct TileRange {
  int64_t grain;  // columns of the widest tile
  int64_t begin, end;
};

// Calls run(Share) for `rows` rows and the tiles of columns that are in each block.
template <typename Run>
void run_columns(const GemmShape& shape, const MatrixView& a, ColumnBlocks b,
                 const TileRange& tiles, int64_t first_row, int64_t rows, Run run) {
  int64_t tile = 0, column = 0;  // first tile and first column of the block
  for (const auto& [matrix, columns] : b) {
    const int64_t first = std::max(tiles.begin - tile, int64_t{0}) * tiles.grain;
    const int64_t last = std::min(columns, (tiles.end - tile) * tiles.grain);
    if (first < last) {
      run(Share{{rows, last - first, shape.k},
                a.from(first_row, 0),
                matrix.from(0, first),
                first_row,
                column + first});
    }
    tile += blocks(columns, tiles.grain);
    column += columns;
  }
}

// Returns the number of rows of A per piece if `tiles` tiles of columns are distributed over
// threads: all rows if there are enough tiles for all threads. Each piece packs its columns of B,
// which takes about as long as the products of kCopyRows rows.
int64_t rows_per_piece(int64_t m, int64_t tiles, int64_t grain) {
  constexpr int64_t kCopyRows = 16, kMinRows = 24;
  const int64_t threads = at::get_num_threads();
  const auto cost = [&](int64_t rows) {
    return blocks(tiles * blocks(m, rows), threads) * (rows + kCopyRows);
  };
  int64_t best = std::max<int64_t>(m, 1);
  for (int64_t pieces = 2; pieces <= threads && m / pieces >= kMinRows; ++pieces) {
    const int64_t rows = blocks(blocks(m, pieces), grain) * grain;
    best = 10 * cost(rows) < 9 * cost(best) ? rows : best;  // requires a gain of more than 10 %
  }
  return best;
}

// Distributes tiles of columns over threads, in equal ranges over all blocks. If there are few
// tiles, also distributes pieces of the rows.
template <typename Run>
void parallel_over_columns(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, Run run) {
  const TileKernel& kernel = tile_kernel_for(a, b.front().b);
  const int64_t grain = kernel.vectors * kernel.width;
  int64_t tiles = 0;
  for (const ColumnBlock& block : b) {
    tiles += blocks(block.columns, grain);
  }
  const int64_t rows = rows_per_piece(shape.m, tiles, kernel.rows);
  parallel_parts(tiles * blocks(shape.m, rows), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t piece = at / tiles, next = std::min(end, (piece + 1) * tiles);
      run_columns(shape, a, b, {grain, at - piece * tiles, next - piece * tiles}, piece * rows,
                  std::min(rows, shape.m - piece * rows), run);
      at = next;
    }
  });
}

// Calls run(Share) for all parts of a product, in parallel.
template <typename Run>
void parallel_over_shares(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, Run run) {
  // If B is transposed or rounded, splits by columns, so that each column is converted once.
  const MatrixView& first = b.front().b;
  const bool is_copied = first.column != 1 || first.rounds_to_bf16;
  if (b.size() > 1 || is_copied || shape.m < shape.n / 4) {
    parallel_over_columns(shape, a, b, run);
  } else {
    const int64_t grain = tile_kernel_for(a, first).rows;
    parallel_parts(blocks(shape.m, grain), [&](int64_t begin, int64_t end) {
      const int64_t row = begin * grain, rows = std::min(shape.m, end * grain) - row;
      run(Share{{rows, shape.n, shape.k}, a.from(row, 0), first, row, 0});
    });
  }
}

// Arguments of matmul_out_cpu().
struct Product {
  const at::Tensor& left;
  at::TensorList right;
  at::ScalarType type;
  bool is_mapped;

  // Returns true if `left` and all right matrices are supported.
  template <typename IsSupported>
  bool all(IsSupported is_supported) const {
    return is_f32_or_bf16(left) && std::all_of(right.begin(), right.end(), is_supported);
  }
  GemmShape shape(const at::Tensor& out) const { return {out.size(0), out.size(1), left.size(1)}; }
  std::vector<ColumnBlock> blocks() const {
    std::vector<ColumnBlock> views;
    for (const at::Tensor& matrix : right) {
      views.push_back({matrix_view(matrix, type), matrix.size(1)});
    }
    return views;
  }
};

// Computes the product by gemm() and returns true, or returns false if it is small or not
// supported.
bool try_gemm(const at::Tensor& out, const Product& product, bool accumulate) {
  const GemmShape shape = product.shape(out);
  const bool to_bf16 = out.scalar_type() == at::kBFloat16;
  const auto is_supported = [&](const at::Tensor& matrix) {
    return is_f32_or_bf16(matrix) ||
           (matrix.scalar_type() == at::kHalf && product.type == at::kFloat);
  };
  if (!is_f32_or_bf16(out) || !product.all(is_supported) || out.stride(1) != 1 ||
      (accumulate && to_bf16) || !use_own_gemm(shape)) {
    return false;
  }
  const MatrixView a = matrix_view(product.left, product.type);
  if (to_bf16) {
    gemm_to_bf16(shape, a, product.blocks(), static_cast<uint16_t*>(out.data_ptr()), out.stride(0));
  } else {
    gemm(shape, a, product.blocks(), out.data_ptr<float>(), out.stride(0), accumulate);
  }
  return true;
}

// Computes the product by skinny_gemm() and returns true. Returns false if the product has many
// rows, or a right operand has no contiguous columns or is neither in 16 bits nor mapped f32.
bool try_skinny_gemm(const at::Tensor& out, const Product& product) {
  const auto is_supported = [&](const at::Tensor& matrix) {
    const auto dtype = matrix.scalar_type();
    return matrix.stride(0) == 1 &&
           (dtype == at::kBFloat16 ||
            (product.type == at::kFloat &&
             (dtype == at::kHalf || (dtype == at::kFloat && product.is_mapped))));
  };
  if (out.size(0) > kMaxSkinnyRows || !product.all(is_supported)) {
    return false;
  }
  const at::Tensor a = operand_cpu(product.left, product.type).contiguous();
  const bool is_in_place = out.scalar_type() == at::kFloat && out.stride(1) == 1;
  const at::Tensor sums = is_in_place ? out : at::empty(out.sizes(), a.options());
  skinny_gemm(product.shape(out), a.const_data_ptr<float>(), product.blocks(),
              sums.data_ptr<float>(), sums.stride(0));
  if (!is_in_place) {
    out.copy_(sums);
  }
  return true;
}

}  // namespace

void gemm_one_thread(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                     int64_t c_row, bool accumulate) {
  gemm_with(tile_kernel_for(a, b), shape, a, b, c, c_row, accumulate);
}

void gemm_with(const TileKernel& kernel, const GemmShape& shape, const MatrixView& a,
               const MatrixView& b, float* c, int64_t c_row, bool accumulate) {
  const auto [m, n, k] = shape;
  if (k == 0 && !accumulate) {
    for (int64_t i = 0; i < m; ++i) {
      std::fill_n(c + i * c_row, n, 0.0F);
    }
  }
  const KernelUse use(kernel);
  static thread_local Scratch scratch;
  const ColumnBlock whole{b, n};
  const PackBuffers buffers = pack_buffers(kernel, shape, a, {&whole, 1}, 0, scratch);
  for (int64_t j = 0; j < n; j += kGemmColumns) {
    const ColumnBlock part{b.from(0, j), std::min(kGemmColumns, n - j)};
    multiply_columns(kernel, {m, part.columns, k}, a, {&part, 1}, buffers, c + j, c_row,
                     accumulate);
  }
}

void gemm_row_blocks(const GemmShape& shape, const MatrixView& a, ColumnBlocks b,
                     const RowConsumer& consume) {
  const auto [m, n, k] = shape;
  TORCH_CHECK(n <= kGemmColumns && k > 0, "a product of ", n, " columns, depth ", k);
  const TileKernel& kernel = tile_kernel_for(a, b.front().b);
  const KernelUse use(kernel);
  static thread_local Scratch scratch;
  // With several blocks of depth, c holds the partial sums of all rows.
  const bool reuses_c = k <= kGemmDepth;
  const int64_t result_rows = reuses_c ? std::min(m, kRowBlock) : m;
  const PackBuffers buffers = pack_buffers(kernel, shape, a, b, result_rows * n, scratch);
  multiply_columns(kernel, shape, a, b, buffers, buffers.extra, n, /*accumulate=*/false, consume,
                   reuses_c);
}

void gemm(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, float* c, int64_t c_row,
          bool accumulate) {
  parallel_over_shares(shape, a, b, [&](const Share& share) {
    gemm_one_thread(share.shape, share.a, share.b, c + share.row * c_row + share.column, c_row,
                    accumulate);
  });
}

void gemm_to_bf16(const GemmShape& shape, const MatrixView& a, ColumnBlocks b, uint16_t* c,
                  int64_t c_row) {
  constexpr int64_t kRows = 512;  // rows of f32 sums that stay in the cache until they are rounded
  parallel_over_shares(shape, a, b, [&](const Share& share) {
    static thread_local Scratch scratch;
    float* sums = scratch.floats(std::min(share.shape.m, kRows) * kGemmColumns);
    for (int64_t j = 0; j < share.shape.n; j += kGemmColumns) {
      const int64_t columns = std::min(kGemmColumns, share.shape.n - j);
      for (int64_t i = 0; i < share.shape.m; i += kRows) {
        const int64_t rows = std::min(kRows, share.shape.m - i);
        gemm_one_thread({rows, columns, share.shape.k}, share.a.from(i, 0), share.b.from(0, j),
                        sums, kGemmColumns, false);
        for (int64_t r = 0; r < rows; ++r) {
          uint16_t* to = c + (share.row + i + r) * c_row + share.column + j;
          f32_to_bf16(sums + r * kGemmColumns, columns, to);
        }
      }
    }
  });
}

float MatrixView::at(int64_t i, int64_t j) const {
  const MatrixView element = from(i, j);
  if (dtype == at::kBFloat16) {
    return widen(*static_cast<const uint16_t*>(element.data));
  }
  if (dtype == at::kHalf) {
    return widen_f16(*static_cast<const uint16_t*>(element.data));
  }
  return rounds_to_bf16 ? rounded_to_bf16(*element.floats()) : *element.floats();
}

MatrixView matrix_view(const at::Tensor& matrix, at::ScalarType type) {
  const auto stored = matrix.scalar_type();
  const bool is_f16 = stored == at::kHalf && type == at::kFloat;
  TORCH_CHECK(matrix.is_cpu() && (is_f16 || stored == at::kBFloat16 || stored == at::kFloat));
  return {matrix.const_data_ptr(), matrix.stride(0), matrix.stride(1), stored,
          /*rounds_to_bf16=*/stored == at::kFloat && type == at::kBFloat16};
}

bool is_f32_or_bf16(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

bool use_own_gemm(const GemmShape& shape) {
  return shape.m >= kTileRows && shape.n >= 16 && shape.k >= 8;
}

at::Tensor operand_cpu(const at::Tensor& tensor, at::ScalarType type) {
  const at::Tensor rounded = tensor.to(type);
  return type == at::kBFloat16 ? rounded.to(at::kFloat) : rounded;
}

void matmul_out_cpu(const at::Tensor& out, const at::Tensor& left, at::TensorList right,
                    at::ScalarType type, bool is_mapped, bool accumulate) {
  const Product whole{left, right, type, is_mapped};
  if ((!accumulate && try_skinny_gemm(out, whole)) || try_gemm(out, whole, accumulate)) {
    return;
  }
  int64_t first = 0;
  for (const at::Tensor& matrix : right) {
    const at::Tensor columns = out.narrow(1, first, matrix.size(1));
    first += matrix.size(1);
    // A block in 16 bits can use skinny_gemm() even if a block in f32 cannot.
    if (right.size() > 1 && !accumulate &&
        try_skinny_gemm(columns, {left, matrix, type, is_mapped})) {
      continue;
    }
    const at::Tensor a = operand_cpu(left, type), b = operand_cpu(matrix, type);
    const bool is_in_place = a.scalar_type() == out.scalar_type();
    at::Tensor sums = is_in_place ? columns : at::empty(columns.sizes(), a.options());
    const bool adds = accumulate && is_in_place;
    if (!try_gemm(sums, {a, b, a.scalar_type(), /*is_mapped=*/false}, adds)) {
      adds ? sums.addmm_(a, b) : at::mm_out(sums, a, b);
    }
    if (!is_in_place) {
      accumulate ? columns.add_(sums) : columns.copy_(sums);
    }
  }
}

}  // namespace moe::kernels
