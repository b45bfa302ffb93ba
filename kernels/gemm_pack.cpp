#include "kernels/gemm_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/vector_math.h"

namespace moe::kernels {

namespace {

MOE_VECTOR_CLONES void widen_all(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = widen(from[i]);
  }
}

MOE_VECTOR_CLONES void round_all(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = rounded_to_bf16(from[i]);
  }
}

// Numbers that follow each other in memory, as f32.
void read(const MatrixView& from, int64_t count, float* to) {
  switch (from.numbers) {
    case Numbers::kF32:
      std::memcpy(to, from.data, static_cast<size_t>(count) * sizeof(float));
      return;
    case Numbers::kRounded:
      return round_all(from.floats(), count, to);
    case Numbers::kBF16:
      return widen_all(static_cast<const uint16_t*>(from.data), count, to);
  }
}

// Vectors of the tile that starts where `columns` are left: 1 for a last one that is not whole.
int64_t vectors_for(const TileKernel& kernel, int64_t columns) {
  int64_t vectors = kernel.vectors;
  while (vectors > 1 && vectors * kernel.width > columns) {
    vectors /= 2;
  }
  return vectors;
}

// Four columns of b, which lie along k, from column j on: to[p * width + r] = b(p, j + r).
void turn_four(const MatrixView& b, int64_t j, int64_t k, int64_t width, float* to) {
  using Four [[gnu::vector_size(16)]] = float;
  const float* from = b.floats() + j * b.column;
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
      std::memcpy(to + (p + r) * width, &out[r], sizeof(Four));
    }
  }
  for (; p < k; ++p) {
    for (int64_t r = 0; r < 4; ++r) {
      to[p * width + r] = from[r * b.column + p];
    }
  }
}

// to[p * width + j] = b(p, j) of a b that lies along k, zeros in columns past `columns`.
void turn_strip(const MatrixView& b, int64_t k, int64_t columns, int64_t width, float* to) {
  int64_t j = 0;
  for (; b.row == 1 && b.numbers != Numbers::kBF16 && j + 4 <= columns; j += 4) {
    turn_four(b, j, k, width, to + j);
  }
  for (; j < width; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      to[p * width + j] = j < columns ? b.at(p, j) : 0.0F;
    }
  }
  if (b.numbers == Numbers::kRounded) {
    round_all(to, k * width, to);
  }
}

// The same of a b whose rows lie in order.
void copy_strip(const MatrixView& b, int64_t k, int64_t columns, int64_t width, float* to) {
  for (int64_t p = 0; p < k; ++p, to += width) {
    read(b.from(p, 0), columns, to);
    std::fill(to + columns, to + width, 0.0F);
  }
}

// to[strip][p * 6 + i] = a(strip * 6 + i, p), of rows that follow each other in memory.
void gather_columns(const MatrixView& a, int64_t rows, int64_t k, float* to) {
  std::array<float, kRowsOfBlock> widened;
  for (int64_t p = 0; p < k; ++p) {
    const MatrixView column = a.from(0, p);
    const float* from = widened.data();
    if (a.numbers == Numbers::kF32) {
      from = column.floats();
    } else {
      read(column, rows, widened.data());
    }
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows) {
      std::memcpy(to + i * k + p * kTileRows, from + i, kTileRows * sizeof(float));
    }
    for (; i < rows; ++i) {
      to[i / kTileRows * kTileRows * k + p * kTileRows + i % kTileRows] = from[i];
    }
  }
}

bool is_read_in_place(const MatrixView& b) { return b.column == 1 && b.numbers == Numbers::kF32; }

}  // namespace

int64_t strip_floats(const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k) {
  return k * ((is_read_in_place(b) ? 0 : n) + kernel.width);
}

std::vector<Strip> strips_of(
    const TileKernel& kernel, const MatrixView& b, int64_t n, int64_t k, float* buffer) {
  std::vector<Strip> strips;
  for (int64_t j = 0; j < n;) {
    const int64_t vectors = vectors_for(kernel, n - j), width = vectors * kernel.width;
    const int64_t columns = std::min(width, n - j);
    const MatrixView part = b.from(0, j);
    if (is_read_in_place(b) && columns == width) {
      strips.push_back({part.floats(), b.row, j, columns, vectors});
    } else {
      b.column == 1 ? copy_strip(part, k, columns, width, buffer)
                    : turn_strip(part, k, columns, width, buffer);
      strips.push_back({buffer, width, j, columns, vectors});
      buffer += k * width;
    }
    j += columns;
  }
  return strips;
}

bool is_gathered(const MatrixView& a, int64_t k) {
  return a.numbers != Numbers::kF32 || (a.row == 1 && a.column != 1 && k > 1);
}

RowsOfA rows_of(const MatrixView& a, int64_t rows, int64_t k, float* buffer) {
  if (!is_gathered(a, k)) {
    return {a.floats(), a.row, a.column, kTileRows * a.row};
  }
  if (a.row == 1) {
    gather_columns(a, rows, k, buffer);
    return {buffer, 1, kTileRows, kTileRows * k};
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t p = 0; a.column != 1 && p < k; ++p) {
      buffer[i * k + p] = a.at(i, p);
    }
    if (a.column == 1) {
      read(a.from(i, 0), k, buffer + i * k);
    }
  }
  return {buffer, k, 1, kTileRows * k};
}

MOE_VECTOR_CLONES void narrow(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    narrow_to(from[i], to[i]);
  }
}

}  // namespace moe::kernels
