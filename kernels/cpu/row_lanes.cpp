#include "kernels/cpu/row_lanes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/transpose_words.h"

namespace moe::kernels {

namespace {

constexpr int64_t kLanes = 16;         // of a vector
constexpr int64_t kColumnsAtOnce = 8;  // of b, whose sums with 48 rows take 24 registers
constexpr int64_t kTransposed =
    16;  // columns of b whose sums are transposed into rows of c at once

int64_t vectors_of(int64_t rows) { return (rows + kLanes - 1) / kLanes; }

// What is read next; what is past the end of its memory is not read.
struct Ahead {
  const std::byte* from;
  int64_t step;
};

#if defined(__x86_64__)
// Eight columns of b, `stride` floats apart, with rows in lanes [depth, kVectors * kLanes]: sums
// [8, kVectors * kLanes], added to what is there where `accumulate`. Memory from `ahead` on is
// asked for meanwhile, `step` bytes with each number of a column: all at once it would be waited
// for.
template <int kVectors>
[[MOE_AVX512_TARGET]] void multiply_eight(const float* rows, const float* b, int64_t stride,
                                          int64_t depth, const Ahead& ahead, float* sums,
                                          bool accumulate) {
  __m512 sum[kColumnsAtOnce][kVectors];
#pragma GCC unroll 24
  for (int64_t i = 0; i < kColumnsAtOnce * kVectors; ++i) {
    sum[i / kVectors][i % kVectors] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < depth; ++p, rows += kVectors * kLanes) {
    __builtin_prefetch(ahead.from + p * ahead.step);
    __m512 left[kVectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) {
      left[v] = _mm512_loadu_ps(rows + v * kLanes);
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kColumnsAtOnce; ++j) {
      const __m512 right = _mm512_set1_ps(b[j * stride + p]);
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[j][v] = _mm512_fmadd_ps(left[v], right, sum[j][v]);
      }
    }
  }
#pragma GCC unroll 24
  for (int64_t i = 0; i < kColumnsAtOnce * kVectors; ++i) {
    float* to = sums + i * kLanes;
    const __m512 before = accumulate ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
    _mm512_storeu_ps(to, _mm512_add_ps(sum[i / kVectors][i % kVectors], before));
  }
}

// Sums [kTransposed, lanes] of `columns` columns into c [rows, columns].
[[MOE_AVX512_TARGET]] void transpose_sums(const float* sums, int64_t lanes, int64_t rows,
                                          int64_t columns, float* c, int64_t c_row) {
  const auto wanted = static_cast<__mmask16>((1U << columns) - 1);
  for (int64_t first = 0; first < rows; first += kLanes) {
    __m512i word[16];
#pragma GCC unroll 16
    for (int64_t j = 0; j < 16; ++j) {
      word[j] = _mm512_loadu_si512(sums + j * lanes + first);
    }
    transpose_words(word);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i) {
      if (first + i < rows) {
        _mm512_mask_storeu_epi32(c + (first + i) * c_row, wanted, word[i]);
      }
    }
  }
}

void multiply_columns_at_once(int64_t vectors, const float* rows, const float* b, int64_t stride,
                              int64_t depth, const Ahead& ahead, float* sums, bool accumulate) {
  const auto multiply = vectors == 3   ? multiply_eight<3>
                        : vectors == 2 ? multiply_eight<2>
                                       : multiply_eight<1>;
  multiply(rows, b, stride, depth, ahead, sums, accumulate);
}
#else
void transpose_sums(const float* /*sums*/, int64_t /*lanes*/, int64_t /*rows*/, int64_t /*columns*/,
                    float* /*c*/, int64_t /*c_row*/) {}
void multiply_columns_at_once(int64_t /*vectors*/, const float* /*rows*/, const float* /*b*/,
                              int64_t /*stride*/, int64_t /*depth*/, const Ahead& /*ahead*/,
                              float* /*sums*/, bool /*accumulate*/) {}
#endif

// Rows of a in lanes, [k, lanes]; zeros where no row is.
const float* rows_in_lanes(const GemmShape& shape, const float* a, Scratch& scratch) {
  const int64_t lanes = vectors_of(shape.m) * kLanes, whole = shape.m / kLanes * kLanes;
  float* to = scratch.floats(shape.k * (lanes + kLanes));
  for (int64_t first = 0; first < whole; first += kLanes) {
    widen_sixteen_columns(a + first * shape.k, shape.k, shape.k, lanes, to + first);
  }
  if (whole < shape.m) {
    float* last = to + shape.k * lanes;
    std::copy_n(a + whole * shape.k, (shape.m - whole) * shape.k, last);
    std::fill(last + (shape.m - whole) * shape.k, last + kLanes * shape.k, 0.0F);
    widen_sixteen_columns(last, shape.k, shape.k, lanes, to + whole);
  }
  return to;
}

// Memory of one thread.
struct ColumnBuffers {
  float* wide;  // [kTransposed, kGemmDepth]: numbers of columns that are not read where they lie
  float* sums;  // [kTransposed, lanes]
};

// Columns j .. of a block, at most kTransposed.
void multiply_transposed(const GemmShape& shape, const float* rows, const MatrixView& b,
                         int64_t columns, const ColumnBuffers& buffers, float* c, int64_t c_row) {
  const int64_t vectors = vectors_of(shape.m), lanes = vectors * kLanes;
  // The next kTransposed columns, in the order of memory.
  const auto* next = static_cast<const std::byte*>(b.from(0, kTransposed).data);
  const int64_t step = kColumnsAtOnce * (b.is_16_bit() ? 2 : 4);
  const bool is_copied = b.dtype != Dtype::kF32 || columns < kTransposed;
  for (int64_t p = 0; p < shape.k; p += kGemmDepth) {
    const int64_t depth = std::min(kGemmDepth, shape.k - p);
    for (int64_t j = 0; is_copied && j < columns; ++j) {
      float* wide = buffers.wide + j * kGemmDepth;
      const MatrixView from = b.from(p, j);
      if (b.dtype == Dtype::kF32) {
        std::copy_n(from.floats(), depth, wide);
      } else {
        bf16_to_f32(static_cast<const uint16_t*>(from.data), depth, wide);
      }
    }
    const float* from = is_copied ? buffers.wide : b.from(p, 0).floats();
    const int64_t stride = is_copied ? kGemmDepth : b.column;
    for (int64_t j = 0; j < columns; j += kColumnsAtOnce) {
      const Ahead ahead{next + (j / kColumnsAtOnce * shape.k + p) * step, step};
      multiply_columns_at_once(vectors, rows + p * lanes, from + j * stride, stride, depth, ahead,
                               buffers.sums + j * lanes, /*accumulate=*/p > 0);
    }
  }
  transpose_sums(buffers.sums, lanes, shape.m, columns, c, c_row);
}

}  // namespace

bool serves_row_lanes(const GemmShape& shape, ColumnBlocks b) {
  const int64_t lanes = vectors_of(shape.m) * kLanes;
  return transposes_sixteen_columns() && shape.m <= kRowsOfLanes && shape.k > 0 &&
         10 * (lanes - shape.m) <= lanes && std::all_of(b.begin(), b.end(), [](const auto& block) {
           return block.b.row == 1 &&
                  (block.b.dtype == Dtype::kF32 || block.b.dtype == Dtype::kBF16);
         });
}

void row_lanes_gemm(const GemmShape& shape, const float* a, ColumnBlocks b, float* c,
                    int64_t c_row) {
  static thread_local Scratch scratch;
  const float* rows = rows_in_lanes(shape, a, scratch);
  const int64_t shares = (shape.n + kTransposed - 1) / kTransposed;
  at::parallel_for(0, shares, 1, [&](int64_t first_share, int64_t last_share) {
    static thread_local Scratch own;
    float* wide = own.floats(kTransposed * (kGemmDepth + kRowsOfLanes));
    std::fill_n(wide, kTransposed * (kGemmDepth + kRowsOfLanes), 0.0F);
    const ColumnBuffers buffers{wide, wide + kTransposed * kGemmDepth};
    const int64_t begin = first_share * kTransposed,
                  end = std::min(shape.n, last_share * kTransposed);
    int64_t first = 0;  // column of the block
    for (const ColumnBlock& block : b) {
      const int64_t low = std::clamp<int64_t>(begin - first, 0, block.columns);
      const int64_t high = std::clamp<int64_t>(end - first, 0, block.columns);
      for (int64_t j = low; j < high; j += kTransposed) {
        multiply_transposed(shape, rows, block.b.from(0, j), std::min(kTransposed, high - j),
                            buffers, c + first + j, c_row);
      }
      first += block.columns;
    }
  });
}

}  // namespace moe::kernels
