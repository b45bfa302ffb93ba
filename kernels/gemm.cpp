// Three loops around the tile: blocks of columns, of depth and of rows, so that a block of B stays
// in the second cache while all rows pass by, and six rows of A in the first. A block of B that
// lies along k is turned into strips; a block of A that lies along its rows is gathered, since its
// columns may lie pages apart.

#include "kernels/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/gemm_tile.h"

namespace moe::kernels {

namespace {

constexpr int64_t kBlockColumns = 512, kBlockRows = 16 * kTileRows;

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Vectors of the tile that starts where `columns` are left: 1 for a last one that is not whole.
int64_t vectors_for(const TileKernel& kernel, int64_t columns) {
  int64_t vectors = kernel.vectors;
  while (vectors > 1 && vectors * kernel.width > columns) {
    vectors /= 2;
  }
  return vectors;
}

// to[p * width + j] = b(p, j), zeros in columns past `columns`.
void turn_strip(const MatrixView& b, int64_t k, int64_t columns, int64_t width, float* to) {
  using Four [[gnu::vector_size(16)]] = float;
  int64_t j = 0;
  for (; b.row == 1 && j + 4 <= columns; j += 4) {
    const float* from = b.data + j * b.column;
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      std::array<Four, 4> in;
      for (int64_t r = 0; r < 4; ++r) {
        std::memcpy(&in[r], from + r * b.column + p, sizeof(Four));
      }
      const Four low = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Four low2 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Four high = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Four high2 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const std::array<Four, 4> out = {__builtin_shufflevector(low, low2, 0, 1, 4, 5),
                                       __builtin_shufflevector(low, low2, 2, 3, 6, 7),
                                       __builtin_shufflevector(high, high2, 0, 1, 4, 5),
                                       __builtin_shufflevector(high, high2, 2, 3, 6, 7)};
      for (int64_t r = 0; r < 4; ++r) {
        std::memcpy(to + (p + r) * width + j, &out[r], sizeof(Four));
      }
    }
    for (; p < k; ++p) {
      for (int64_t r = 0; r < 4; ++r) {
        to[p * width + j + r] = from[r * b.column + p];
      }
    }
  }
  for (; j < width; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      to[p * width + j] = j < columns ? b.data[p * b.row + j * b.column] : 0.0F;
    }
  }
}

// Whether a block of A is copied before its products.
bool gathers(const MatrixView& a, int64_t k) { return a.row == 1 && a.column != 1 && k > 1; }

// to[strip][p * 6 + i] = a(strip * 6 + i, p), of rows that follow each other in memory.
void gather_rows(const MatrixView& a, int64_t rows, int64_t k, float* to) {
  for (int64_t p = 0; p < k; ++p) {
    const float* from = a.data + p * a.column;
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows) {
      std::memcpy(to + i * k + p * kTileRows, from + i, kTileRows * sizeof(float));
    }
    for (; i < rows; ++i) {
      to[i / kTileRows * kTileRows * k + p * kTileRows + i % kTileRows] = from[i];
    }
  }
}

// One strip of B as tiles read it.
struct Strip {
  const float* data;
  int64_t stride;   // between its rows
  int64_t first;    // column in the block
  int64_t columns;  // that are wanted of it
  int64_t vectors;
};

// The strips of b [k, n]; those that cannot be read where they lie are written to `buffer`, which
// has room for k times n rounded up to a vector.
std::vector<Strip> strips_of(
    const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k, float* buffer) {
  std::vector<Strip> strips;
  for (int64_t j = 0; j < n;) {
    const int64_t vectors = vectors_for(kernel, n - j), width = vectors * kernel.width;
    const int64_t columns = std::min(width, n - j);
    const MatrixView part = b.from(0, j);
    if (b.column == 1 && columns == width) {
      strips.push_back({part.data, b.row, j, columns, vectors});
    } else {
      turn_strip(part, k, columns, width, buffer);
      strips.push_back({buffer, width, j, columns, vectors});
      buffer += k * width;
    }
    j += columns;
  }
  return strips;
}

// A tile whose last vector is not whole, by way of one that is.
void run_edge(const TileKernel& kernel, Tile tile, int64_t columns) {
  std::array<float, kTileRows * 16> whole;
  float* c = tile.c;
  const int64_t c_row = tile.c_row;
  const bool accumulate = tile.accumulate;
  tile.c = whole.data();
  tile.c_row = kernel.width;
  tile.accumulate = false;
  kernel.run(tile);
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = whole[static_cast<size_t>(i * kernel.width + j)];
      c[i * c_row + j] = accumulate ? c[i * c_row + j] + value : value;
    }
  }
}

// Rows of A, up to kBlockRows of them, with every strip.
void run_rows(const TileKernel& kernel,
              const MatrixView& a,
              int64_t rows,
              int64_t k,
              const std::vector<Strip>& strips,
              float* gathered,
              float* c,
              int64_t c_row,
              bool accumulate) {
  const bool is_gathered = gathers(a, k);
  if (is_gathered) {
    gather_rows(a, rows, k, gathered);
  }
  for (int64_t i = 0; i < rows; i += kTileRows) {
    Tile tile{std::min(kTileRows, rows - i), 1, k, a.data + i * a.row, a.row, a.column};
    if (is_gathered) {
      tile.a = gathered + i * k;
      tile.a_row = 1;
      tile.a_k = kTileRows;
    }
    tile.c_row = c_row;
    tile.accumulate = accumulate;
    for (const Strip& strip : strips) {
      tile.vectors = strip.vectors;
      tile.b = strip.data;
      tile.b_k = strip.stride;
      tile.c = c + i * c_row + strip.first;
      if (strip.columns == strip.vectors * kernel.width) {
        kernel.run(tile);
      } else {
        run_edge(kernel, tile, strip.columns);
      }
    }
  }
}

}  // namespace

void gemm_one_thread(const GemmShape& shape,
                     const MatrixView& a,
                     const MatrixView& b,
                     float* c,
                     int64_t c_row,
                     bool accumulate) {
  gemm_with(tile_kernels().front(), shape, a, b, c, c_row, accumulate);
}

void gemm_with(const TileKernel& kernel,
               const GemmShape& shape,
               const MatrixView& a,
               const MatrixView& b,
               float* c,
               int64_t c_row,
               bool accumulate) {
  const auto [m, n, k] = shape;
  if (k == 0 && !accumulate) {
    for (int64_t i = 0; i < m; ++i) {
      std::fill_n(c + i * c_row, n, 0.0F);
    }
  }
  const int64_t most_k = std::min(k, kGemmDepth);
  const int64_t turned = b.column == 1 ? 0 : std::min(n, kBlockColumns);
  const int64_t strip_floats = most_k * (turned + kernel.width);
  const int64_t gathered = gathers(a, k) ? most_k * kBlockRows : 0;
  const auto memory = c10::GetCPUAllocator()->allocate(
      static_cast<size_t>(strip_floats + gathered) * sizeof(float));
  auto* buffer = static_cast<float*>(memory.get());
  for (int64_t j = 0; j < n; j += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n - j);
    for (int64_t p = 0; p < k; p += kGemmDepth) {
      const int64_t depth = std::min(kGemmDepth, k - p);
      const auto strips = strips_of(kernel, b.from(p, j), columns, depth, buffer);
      for (int64_t i = 0; i < m; i += kBlockRows) {
        run_rows(kernel,
                 a.from(i, p),
                 std::min(kBlockRows, m - i),
                 depth,
                 strips,
                 buffer + strip_floats,
                 c + i * c_row + j,
                 c_row,
                 accumulate || p > 0);
      }
    }
  }
}

void gemm(const GemmShape& shape,
          const MatrixView& a,
          const MatrixView& b,
          float* c,
          int64_t c_row,
          bool accumulate) {
  // A B that is turned is turned once: its columns are shared out then, else the rows of A.
  const bool by_columns = b.column != 1 || shape.m < shape.n / 4;
  const TileKernel& kernel = tile_kernels().front();
  const int64_t grain = by_columns ? kernel.vectors * kernel.width : kTileRows;
  const int64_t parts = blocks(by_columns ? shape.n : shape.m, grain);
  at::parallel_for(0, parts, blocks(parts, at::get_num_threads()), [&](int64_t begin, int64_t end) {
    GemmShape part = shape;
    int64_t& size = by_columns ? part.n : part.m;
    const int64_t first = begin * grain;
    size = std::min(size, end * grain) - first;
    by_columns ? gemm_one_thread(part, a, b.from(0, first), c + first, c_row, accumulate)
               : gemm_one_thread(part, a.from(first, 0), b, c + first * c_row, c_row, accumulate);
  });
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  product_out(out, left, right);
  return out;
}

void product_out(at::Tensor& out,
                 const at::Tensor& left,
                 const at::Tensor& right,
                 bool accumulate) {
  TORCH_CHECK(
      left.size(1) == right.size(0) && out.size(0) == left.size(0) && out.size(1) == right.size(1),
      "left ",
      left.sizes(),
      ", right ",
      right.sizes(),
      ", out ",
      out.sizes());
  const GemmShape shape{left.size(0), right.size(1), left.size(1)};
  const bool is_large = shape.m >= kTileRows && shape.n >= 16 && shape.k >= 8;
  if (left.is_cpu() && out.scalar_type() == at::kFloat && left.scalar_type() == at::kFloat &&
      right.scalar_type() == at::kFloat && out.stride(1) == 1 && is_large) {
    gemm(shape,
         {left.const_data_ptr<float>(), left.stride(0), left.stride(1)},
         {right.const_data_ptr<float>(), right.stride(0), right.stride(1)},
         out.data_ptr<float>(),
         out.stride(0),
         accumulate);
  } else if (accumulate) {
    out.addmm_(left, right);
  } else {
    at::mm_out(out, left, right);
  }
}

}  // namespace moe::kernels
