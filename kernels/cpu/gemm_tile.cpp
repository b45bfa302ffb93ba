// One template for all instruction sets. The compiler keeps `sum` in registers, because all its
// indices are constants after unrolling.

#include "kernels/cpu/gemm_tile.h"

#include <bit>
#include <cstring>

#include "kernels/cpu/amx_tile.h"

namespace moe::kernels {

namespace {

using Vector4 [[gnu::vector_size(16)]] = float;
using Vector8 [[gnu::vector_size(32)]] = float;
using Vector16 [[gnu::vector_size(64)]] = float;

// Adds the product of a word of A and a vector of words of B to a vector of sums.
struct MultiplyF32 {
  template <typename Vector>
  [[gnu::always_inline]] static void add(const float* left, const Vector& right, Vector& sum) {
    sum += *left * right;
  }
};

#if defined(__x86_64__)
// One instruction for two bf16. Inline assembly, because an intrinsic cannot be called from a
// template that is compiled for several instruction sets.
struct MultiplyBF16 {
  template <typename Vector>
  [[gnu::always_inline]] static void add(const float* left, const Vector& right, Vector& sum) {
    using Words [[gnu::vector_size(sizeof(Vector))]] = uint32_t;
    const Words both = Words{} + std::bit_cast<uint32_t>(*left);
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(both), "v"(right));
  }
};
#endif

template <typename Multiply, typename Vector, int kRows, int kVectors>
[[gnu::always_inline]] inline void run_tile(const Tile& tile) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  Vector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = Vector{};
      __builtin_prefetch(tile.c + i * tile.c_row + j * kWidth, 1);  // saves 4 % of a product
    }
  }
  const float *a = tile.a, *b = tile.b;
  const int64_t a_row = tile.a_row, a_k = tile.a_k, b_k = tile.b_k;
  for (int64_t p = 0; p < tile.k; ++p, a += a_k, b += b_k) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      std::memcpy(&right[j], b + j * kWidth, sizeof(Vector));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        Multiply::add(a + i * a_row, right[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* to = tile.c + i * tile.c_row + j * kWidth;
      if (tile.accumulate) {
        Vector before;
        std::memcpy(&before, to, sizeof(Vector));
        sum[i][j] += before;
      }
      std::memcpy(to, &sum[i][j], sizeof(Vector));
    }
  }
}

template <typename Multiply, typename Vector, int kVectors, int kRows = kTileRows>
[[gnu::always_inline]] inline void run_rows(const Tile& tile) {
  if constexpr (kRows > 1) {
    if (tile.rows < kRows) {
      return run_rows<Multiply, Vector, kVectors, kRows - 1>(tile);
    }
  }
  run_tile<Multiply, Vector, kRows, kVectors>(tile);
}

template <typename Multiply, typename Vector>
[[gnu::always_inline]] inline void run_narrow(const Tile& tile) {
  tile.vectors == 2 ? run_rows<Multiply, Vector, 2>(tile) : run_rows<Multiply, Vector, 1>(tile);
}

// For any CPU: the compiler maps Vector4 to the available registers.
void run_portable(const Tile& tile) { run_narrow<MultiplyF32, Vector4>(tile); }

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void run_avx512(const Tile& tile) {
  tile.vectors == 4 ? run_rows<MultiplyF32, Vector16, 4>(tile)
                    : run_narrow<MultiplyF32, Vector16>(tile);
}
[[gnu::target("avx512f")]] void run_avx512_bf16(const Tile& tile) {
  tile.vectors == 4 ? run_rows<MultiplyBF16, Vector16, 4>(tile)
                    : run_narrow<MultiplyBF16, Vector16>(tile);
}
[[gnu::target("avx2,fma")]] void run_avx2(const Tile& tile) {
  run_narrow<MultiplyF32, Vector8>(tile);
}
#elif defined(__aarch64__)
// NEON has 32 registers: 24 sums, 4 vectors of B and an element of A. With instruction scheduling
// GCC loads more elements of A than there are registers.
[[gnu::optimize("no-schedule-insns")]] void run_neon(const Tile& tile) {
  tile.vectors == 4 ? run_rows<MultiplyF32, Vector4, 4>(tile)
                    : run_narrow<MultiplyF32, Vector4>(tile);
}
#endif

}  // namespace

const std::vector<TileKernel>& tile_kernels() {
  static const std::vector<TileKernel> kernels = [] {
    std::vector<TileKernel> all;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      all.push_back({16, 4, run_avx512});
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      all.push_back({8, 2, run_avx2});
    }
#elif defined(__aarch64__)
    all.push_back({4, 4, run_neon});
#endif
    all.push_back({4, 2, run_portable});
    return all;
  }();
  return kernels;
}

const std::vector<TileKernel>& bf16_tile_kernels() {
  static const std::vector<TileKernel> kernels = [] {
    std::vector<TileKernel> all;
    if (const auto amx = amx_tile_kernel()) {
      all.push_back(*amx);
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16")) {
      all.push_back({16, 4, run_avx512_bf16, Word::kTwoBF16});
    }
#endif
    return all;
  }();
  return kernels;
}

const TileKernel* bf16_product_kernel() {
  const auto& kernels = bf16_tile_kernels();
  return kernels.empty() ? nullptr : &kernels.front();
}

}  // namespace moe::kernels
