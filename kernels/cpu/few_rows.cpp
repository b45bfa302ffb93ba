// On any processor, four columns at a time.

#include "kernels/cpu/few_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/transpose_words.h"

namespace moe::kernels {

namespace {

using Four [[gnu::vector_size(16)]] = float;

// Numbers of a column, zeros past the first `count`.
[[gnu::always_inline]] inline void load_four(const float* from, int64_t count, Four& to) {
  if (count >= 4) {
    std::memcpy(&to, from, sizeof(to));
    return;
  }
  to = Four{};
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}
[[gnu::always_inline]] inline void load_four(const uint16_t* bf16, int64_t count, Four& to) {
  using Words [[gnu::vector_size(16)]] = uint32_t;
  Words words{};
  for (int64_t i = 0; i < 4; ++i) {
    words[i] = i < count ? uint32_t{bf16[i]} << 16 : 0;
  }
  std::memcpy(&to, &words, sizeof(to));
}

// to[p] = the number p of every column.
[[gnu::always_inline]] inline void transpose_four_by_four(const Four (&in)[4], Four (&to)[4]) {
  const Four low = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Four low2 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Four high = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Four high2 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  to[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
  to[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
  to[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
  to[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}

// Row `row` with columns j .. j + 15.
template <typename Number>
[[gnu::always_inline]] inline void multiply_fours(const FewRows<Number>& in, int64_t row,
                                                  int64_t j) {
  constexpr int64_t kGroups = kColumnsOfFewRows / 4;
  const float* a = in.a + row * in.padded;
  for (int64_t begin = 0; begin < in.k; begin += kGemmDepth) {
    const int64_t end = std::min(in.k, begin + kGemmDepth);
    Four sum[kGroups] = {};
    for (int64_t p = begin; p < end; p += 4) {
#pragma GCC unroll 4
      for (int64_t group = 0; group < kGroups; ++group) {
        const Number* from = in.b + (j + 4 * group) * in.stride + p;
        __builtin_prefetch(from + 2 * kColumnsOfFewRows * in.stride);
        Four lying[4], transposed[4];
#pragma GCC unroll 4
        for (int64_t r = 0; r < 4; ++r) {
          load_four(from + r * in.stride, in.k - p, lying[r]);
        }
        transpose_four_by_four(lying, transposed);
#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; ++i) {
          sum[group] += a[p + i] * transposed[i];
        }
      }
    }
    for (int64_t group = 0; group < kGroups; ++group) {
      float* c = in.c + row * in.c_row + j + 4 * group;
      Four before{};
      if (begin > 0) {
        std::memcpy(&before, c, sizeof(before));
      }
      sum[group] += before;
      std::memcpy(c, &sum[group], sizeof(before));
    }
  }
}

template <typename Number>
void run_portable(const FewRows<Number>& in) {
  for (int64_t j = 0; j < in.columns; j += kColumnsOfFewRows) {
    for (int64_t row = 0; row < in.rows; ++row) {
      multiply_fours(in, row, j);
    }
  }
}

}  // namespace

const std::vector<FewRowsKernel>& few_rows_kernels() {
  static const std::vector<FewRowsKernel> kernels = [] {
    std::vector<FewRowsKernel> all;
#if defined(__x86_64__)
    if (transposes_sixteen_columns()) {
      all.push_back(few_rows_avx512());
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      all.push_back(few_rows_avx2());
    }
#endif
    all.push_back({2, run_portable<float>, run_portable<uint16_t>, /*fuses=*/false});
    return all;
  }();
  return kernels;
}

}  // namespace moe::kernels
