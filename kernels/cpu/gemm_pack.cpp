#include "kernels/cpu/gemm_pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Reads contiguous elements as f32.
void read(const MatrixView& from, int64_t count, float* to) {
  if (from.is_16_bit()) {
    const auto convert = from.dtype == at::kBFloat16 ? bf16_to_f32 : f16_to_f32;
    convert(static_cast<const uint16_t*>(from.data), count, to);
  } else if (from.rounds_to_bf16) {
    round_to_bf16(from.floats(), count, to);
  } else {
    std::memcpy(to, from.data, static_cast<size_t>(count) * sizeof(float));
  }
}

// Reads contiguous elements along k as words.
void read_words_along_k(Word word, const MatrixView& from, int64_t count, float* to) {
  if (word == Word::kF32) {
    return read(from, count, to);
  }
  auto* bf16 = reinterpret_cast<uint16_t*>(to);
  if (from.dtype == at::kBFloat16) {
    std::memcpy(bf16, from.data, static_cast<size_t>(count) * sizeof(uint16_t));
  } else {
    f32_to_bf16_ftz(from.floats(), count, bf16);
  }
  if (count % 2 != 0) {
    bf16[count] = 0;
  }
}

// Writes to[j] = word p of column j of b [k, count] with contiguous rows. `count` is at most
// kRowBlock, which exceeds the columns of a strip.
void read_words_across_k(Word word, const MatrixView& b, int64_t k, int64_t p, int64_t count,
                         float* to) {
  if (word == Word::kF32) {
    return read(b.from(p, 0), count, to);
  }
  static constexpr std::array<float, kRowBlock> kZeros{};
  const MatrixView first = b.from(2 * p, 0);
  const void* second = 2 * p + 1 < k ? b.from(2 * p + 1, 0).data : kZeros.data();
  if (b.dtype == at::kBFloat16) {
    pack_bf16_pairs(static_cast<const uint16_t*>(first.data), static_cast<const uint16_t*>(second),
                    count, to);
  } else {
    pack_bf16_pairs(first.floats(), static_cast<const float*>(second), count, to);
  }
}

// Returns true if rows [..., k] can be read in place as words of two bf16.
bool is_bf16_words(const MatrixView& rows, int64_t k) {
  return rows.dtype == at::kBFloat16 && rows.column == 1 && rows.row % 2 == 0 && k % 2 == 0 &&
         reinterpret_cast<uintptr_t>(rows.data) % sizeof(float) == 0;
}

float word_at(Word word, const MatrixView& b, int64_t k, int64_t p, int64_t j) {
  if (word == Word::kF32) {
    return b.at(p, j);
  }
  const auto low = std::bit_cast<uint32_t>(b.at(2 * p, j)) >> 16;
  const auto high = 2 * p + 1 < k ? std::bit_cast<uint32_t>(b.at(2 * p + 1, j)) : 0;
  return std::bit_cast<float>(low | high);
}

// Returns the width in vectors of the next tile if `columns` columns are left, at least 1.
int64_t tile_vectors(const TileKernel& kernel, int64_t columns) {
  int64_t vectors = kernel.vectors;
  while (vectors > 1 && vectors * kernel.width > columns) {
    vectors /= 2;
  }
  return vectors;
}

// transpose_four_rows() for columns of bf16: to[p * width + r] = element p of column r, as f32.
// Transposes eight bf16 of each column at a time, then widens.
void transpose_four(const uint16_t* from, int64_t stride, int64_t k, int64_t width, float* to) {
  using Eight [[gnu::vector_size(16)]] = uint16_t;
  using Pairs [[gnu::vector_size(16)]] = uint32_t;
  const auto low = [](Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  };
  const auto high = [](Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  };
  const auto low_pairs = [](Eight a, Eight b) {
    return std::bit_cast<Eight>(
        __builtin_shufflevector(std::bit_cast<Pairs>(a), std::bit_cast<Pairs>(b), 0, 4, 1, 5));
  };
  const auto high_pairs = [](Eight a, Eight b) {
    return std::bit_cast<Eight>(
        __builtin_shufflevector(std::bit_cast<Pairs>(a), std::bit_cast<Pairs>(b), 2, 6, 3, 7));
  };
  int64_t p = 0;
  for (; p + 8 <= k; p += 8) {
    std::array<Eight, 4> in;
    for (int64_t r = 0; r < 4; ++r) {
      std::memcpy(&in[r], from + r * stride + p, sizeof(Eight));
    }
    const Eight front = low(in[0], in[1]), front2 = low(in[2], in[3]);
    const Eight back = high(in[0], in[1]), back2 = high(in[2], in[3]);
    // transposed[r]: elements p + 2 r and p + 2 r + 1 of all four columns.
    const std::array<Eight, 4> transposed = {low_pairs(front, front2), high_pairs(front, front2),
                                             low_pairs(back, back2), high_pairs(back, back2)};
    for (int64_t r = 0; r < 4; ++r) {
      const Eight first = low(Eight{}, transposed[r]), second = high(Eight{}, transposed[r]);
      std::memcpy(to + (p + 2 * r) * width, &first, sizeof(Eight));
      std::memcpy(to + (p + 2 * r + 1) * width, &second, sizeof(Eight));
    }
  }
  for (; p < k; ++p) {
    for (int64_t r = 0; r < 4; ++r) {
      to[p * width + r] = widen(from[r * stride + p]);
    }
  }
}

// Overload that first converts elements to words, kPiece elements at a time.
void transpose_four(Word word, const MatrixView& from, int64_t k, int64_t width, float* to) {
  constexpr int64_t kPiece = 128;
  std::array<float, 4 * kPiece> wide;
  for (int64_t p = 0; p < k; p += kPiece) {
    const int64_t count = std::min(kPiece, k - p);
    for (int64_t r = 0; r < 4; ++r) {
      read_words_along_k(word, from.from(p, r), count, wide.data() + r * kPiece);
    }
    transpose_four_rows(wide.data(), kPiece, num_words(word, count), width,
                        to + num_words(word, p) * width);
  }
}

void prefetch(const MatrixView& from, int64_t count) {
  const int64_t bytes = count * (from.is_16_bit() ? 2 : 4);
  for (int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(from.data) + at);
  }
}

// Transposes groups of sixteen contiguous columns, if the CPU has the instructions. Returns the
// number of transposed columns.
int64_t transpose_in_sixteens(Word word, const MatrixView& b, int64_t k, int64_t columns,
                              int64_t width, float* to) {
  const bool transposes = b.row == 1 && b.dtype != at::kHalf &&
                          (word == Word::kF32 ? has_avx512_transpose() : has_avx512_bf16());
  int64_t j = 0;
  const auto transpose = [&](const auto* from) {
    word == Word::kF32 ? transpose_to_f32(from, b.column, k, width, to + j)
                       : transpose_bf16_pairs(from, b.column, k, width, to + j);
  };
  for (; transposes && j + 16 <= columns; j += 16) {
    const MatrixView from = b.from(0, j);
    b.is_16_bit() ? transpose(static_cast<const uint16_t*>(from.data)) : transpose(from.floats());
  }
  return j;
}

// Writes to[p * width + j] = word p of column j of b; columns from `columns` on are zero. Fast
// paths for contiguous columns.
void transpose_strip(Word word, const MatrixView& b, int64_t k, int64_t columns, int64_t width,
                     float* to) {
  int64_t j = transpose_in_sixteens(word, b, k, columns, width, to);
  for (; b.row == 1 && j + 4 <= columns; j += 4) {
    const void* from = b.from(0, j).data;
    for (int64_t r = 4; r < 8; ++r) {
      prefetch(b.from(0, j + r), k);  // the hardware does not prefetch the next columns
    }
    if (word == Word::kTwoBF16 && is_bf16_words(b.transposed(), k)) {
      transpose_four_rows(static_cast<const float*>(from), b.column / 2, k / 2, width, to + j);
    } else if (word == Word::kTwoBF16 || b.dtype == at::kHalf) {
      transpose_four(word, b.from(0, j), k, width, to + j);
    } else if (b.dtype == at::kBFloat16) {
      transpose_four(static_cast<const uint16_t*>(from), b.column, k, width, to + j);
    } else {
      transpose_four_rows(static_cast<const float*>(from), b.column, k, width, to + j);
    }
  }
  for (; j < width; ++j) {
    for (int64_t p = 0; p < num_words(word, k); ++p) {
      to[p * width + j] = j < columns ? word_at(word, b, k, p, j) : 0.0F;
    }
  }
  if (word == Word::kF32 && b.rounds_to_bf16) {
    round_to_bf16(to, k * width, to);
  }
}

// Packs all strips of b, which has contiguous rows. Reads b row by row, in memory order.
void copy_strips(Word word, const MatrixView& b, int64_t k, std::span<const Strip> strips,
                 float* buffer) {
  const int64_t words = num_words(word, k);
  for (int64_t p = 0; p < words; ++p) {
    float* to = buffer;
    for (const Strip& strip : strips) {
      float* row = to + p * strip.stride;
      read_words_across_k(word, b.from(0, strip.first), k, p, strip.columns, row);
      std::fill(row + strip.columns, row + strip.stride, 0.0F);
      to += words * strip.stride;
    }
  }
}

// Writes to[tile][p * 6 + i] = word p of row tile * 6 + i of `a`, which has contiguous columns.
// Processes kColumns columns at a time, so that writes are contiguous.
void pack_columns(Word word, const MatrixView& a, int64_t rows, int64_t k, float* to) {
  constexpr int64_t kColumns = 16;
  float converted[kRowBlock * kColumns];
  const int64_t words = num_words(word, k), numbers = word == Word::kF32 ? 1 : 2;
  for (int64_t p = 0; p < words; p += kColumns) {
    const int64_t columns = std::min(kColumns, words - p);
    const float* from = converted;
    int64_t stride = kRowBlock;
    // The hardware does not prefetch the next columns, which are pages apart.
    const int64_t after = (p + columns) * numbers;
    for (int64_t next = after; next < std::min(after + kColumns * numbers, k); ++next) {
      prefetch(a.from(0, next), rows);
    }
    if (a.is_plain_f32()) {
      from = a.from(0, p).floats();
      stride = a.column;
    } else {
      for (int64_t q = 0; q < columns; ++q) {
        read_words_across_k(word, a.transposed(), k, p + q, rows, converted + q * kRowBlock);
      }
    }
    for (int64_t i = 0; i < rows; i += kTileRows) {
      float* tile = to + i * words + p * kTileRows;
      const int64_t height = std::min(kTileRows, rows - i);
      for (int64_t q = 0; q < columns; ++q) {
        if (height == kTileRows) {
          std::memcpy(tile + q * kTileRows, from + q * stride + i, kTileRows * sizeof(float));
        } else {
          std::copy_n(from + q * stride + i, height, tile + q * kTileRows);
        }
      }
    }
  }
}

// Writes to[i * words + p] = word p of row i, for kernels with reads_along_k().
void pack_rows_along_k(Word word, const MatrixView& a, int64_t rows, int64_t k, float* to) {
  float across[kRowBlock];
  const int64_t words = num_words(word, k);
  for (int64_t p = 0; p < words; ++p) {
    read_words_across_k(word, a.transposed(), k, p, rows, across);
    for (int64_t i = 0; i < rows; ++i) {
      to[i * words + p] = across[i];
    }
  }
}

// bf16 is never read in place: words require that pairs of rows are interleaved.
bool is_read_in_place(const MatrixView& b) { return b.column == 1 && b.is_plain_f32(); }

// Computes a tile of one partial vector in a buffer and copies the used columns.
void run_edge(const TileKernel& kernel, const Tile& tile, int64_t columns) {
  float whole[kMaxTileRows * 16];
  Tile in_buffer = tile;
  in_buffer.c = whole;
  in_buffer.c_row = kernel.width;
  in_buffer.accumulate = false;
  kernel.run(in_buffer);
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& c = tile.c[i * tile.c_row + j];
      c = tile.accumulate ? c + whole[i * kernel.width + j] : whole[i * kernel.width + j];
    }
  }
}

}  // namespace

int64_t strip_numel(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k) {
  return num_words(kernel.word, k) * ((is_read_in_place(b) ? 0 : n) + kernel.width);
}

std::vector<Strip> pack_strips(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k,
                               float* buffer) {
  std::vector<Strip> strips;
  float* next = buffer;
  size_t in_place = 0;
  for (int64_t j = 0; j < n;) {
    const int64_t vectors = tile_vectors(kernel, n - j), width = vectors * kernel.width;
    const int64_t columns = std::min(width, n - j);
    if (is_read_in_place(b) && columns == width) {
      strips.push_back({b.from(0, j).floats(), b.row, j, columns, vectors});
      in_place = strips.size();
    } else {
      strips.push_back({next, width, j, columns, vectors});
      if (b.column != 1) {
        transpose_strip(kernel.word, b.from(0, j), k, columns, width, next);
      }
      next += num_words(kernel.word, k) * width;
    }
    j += columns;
  }
  if (b.column == 1) {  // strips in place come first
    copy_strips(kernel.word, b, k, std::span(strips).subspan(in_place), buffer);
  }
  return strips;
}

void transpose_four_rows(const float* from, int64_t stride, int64_t k, int64_t width, float* to) {
  int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    Float4 in[4], out[4];
    for (int64_t r = 0; r < 4; ++r) {
      std::memcpy(&in[r], from + r * stride + p, sizeof(Float4));
    }
    transpose_4x4(in, out);
    for (int64_t r = 0; r < 4; ++r) {
      std::memcpy(to + (p + r) * width, &out[r], sizeof(Float4));
    }
  }
  for (; p < k; ++p) {
    for (int64_t r = 0; r < 4; ++r) {
      to[p * width + r] = from[r * stride + p];
    }
  }
}

bool is_packed(const TileKernel& kernel, const MatrixView& a, int64_t k) {
  return kernel.word == Word::kTwoBF16
             ? !is_bf16_words(a, k)
             : !a.is_plain_f32() || (a.row == 1 && a.column != 1 && k > 1);
}

RowsOfA pack_rows(const TileKernel& kernel, const MatrixView& a, int64_t rows, int64_t k,
                  float* buffer) {
  const Word word = kernel.word;
  if (!is_packed(kernel, a, k)) {
    const bool is_f32 = word == Word::kF32;
    const int64_t row = is_f32 ? a.row : a.row / 2;
    return {a.floats(), row, is_f32 ? a.column : 1, kernel.rows * row};
  }
  const int64_t words = num_words(word, k);
  if (a.row == 1 && !kernel.reads_along_k()) {
    pack_columns(word, a, rows, k, buffer);
    return {buffer, 1, kTileRows, kTileRows * words};
  }
  if (a.row == 1) {
    pack_rows_along_k(word, a, rows, k, buffer);
  }
  for (int64_t i = 0; a.row != 1 && i < rows; ++i) {
    if (a.column == 1) {
      read_words_along_k(word, a.from(i, 0), k, buffer + i * words);
      continue;
    }
    for (int64_t p = 0; p < words; ++p) {
      buffer[i * words + p] = word_at(word, a.transposed(), k, p, i);
    }
  }
  return {buffer, words, 1, kernel.rows * words};
}

void multiply_row_block(const TileKernel& kernel, const RowsOfA& a, int64_t rows, int64_t k,
                        std::span<const Strip> strips, float* c, int64_t c_row, bool accumulate) {
  for (int64_t i = 0; i < rows; i += kernel.rows) {
    Tile tile{std::min(kernel.rows, rows - i), 1, k, a.data + i / kernel.rows * a.tile, a.row, a.k};
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

}  // namespace moe::kernels
