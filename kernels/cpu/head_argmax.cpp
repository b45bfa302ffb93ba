// Rows lie in the lanes of vectors and meet one word of a column at a time, two numbers of bf16 as
// the matrix stores them: so a head is read once, in order, and packed nowhere. Logits stay in
// registers: most are compared with what their row has seen so far, and forgotten.

#include "kernels/ops/head_argmax.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/cpu/bf16_convert.h"
#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/logsumexp.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/cpu/vector_math.h"

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstdlib>
#endif

namespace moe::kernels {

namespace {

constexpr size_t kMostCandidates = 64;  // of a row: more are not worth computing one by one
constexpr int64_t kColumnsOfShare = 512;
constexpr int64_t kRowsOfVector = 16, kMostVectors = 3;
constexpr int64_t kRowsAtOnce = kMostVectors * kRowsOfVector;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A column whose logit may be a row's largest.
struct Candidate {
  int64_t row, column;
  float logit;  // of bf16
};

MOE_VECTOR_CLONES double sum_of_squares(const uint16_t* bf16, int64_t count) {
  constexpr int64_t kRunningSums = 16;
  double lane[kRunningSums] = {};
  const int64_t whole = count / kRunningSums * kRunningSums;
  for (int64_t i = 0; i < whole; i += kRunningSums) {
    for (int64_t k = 0; k < kRunningSums; ++k) {
      const double number = widen(bf16[i + k]);
      lane[k] += number * number;
    }
  }
  double sum = 0;
  for (int64_t i = whole; i < count; ++i) {
    const double number = widen(bf16[i]);
    sum += number * number;
  }
  for (const double part : lane) {
    sum += part;
  }
  return sum;
}

// How far a row's logit in bf16 may lie from that in f32. Of a row h of k numbers that bf16 makes
// g, and a column w of norm |w|: |g w - h w| <= |g - h| |w| exactly (Cauchy and Schwarz). Each of
// the two sums adds k products, those of g exact, those of h rounded with their addition, and some
// blocks of them: at most k + 16 + k / 256 roundings of 2^-24, so it is off by less than
// (k + 16) 2^-23 |h| |w| for k below 2^22, and both by twice that. Twice that again covers the
// roundings of norms and of g's norm in place of h's. Numbers and products below 2^-126 count as
// zero in bf16: k times that, a column's numbers being at most |w|. Infinite where a sum may
// overflow: none is larger than |h| |w|.
double margin_of(const float* h, const uint16_t* g, int64_t k, double largest_norm) {
  double squares = 0, rounded = 0;
  for (int64_t p = 0; p < k; ++p) {
    const double number = h[p], apart = number - widen(g[p]);
    squares += number * number;
    rounded += apart * apart;
  }
  if (!(std::sqrt(squares) * largest_norm < 0x1p126)) {
    return std::numeric_limits<double>::infinity();
  }
  const double of_sums = static_cast<double>(k + 16) * 0x1p-21 * std::sqrt(squares);
  const double of_zeros = static_cast<double>(k) * 0x1p-125;
  return 1.001 * largest_norm * (std::sqrt(rounded) + of_sums + of_zeros) + of_zeros;
}

// What a logit in bf16 is at least whose logit in f32 may be as large as that of `largest`.
float least_beside(float largest, double margin) {
  return std::nextafter(static_cast<float>(largest - 2 * margin), -kInfinity);
}

// Up to kRowsAtOnce rows on their way through some columns.
struct Search {
  const float*
      words;  // [words of width, vectors, kRowsOfVector], each two numbers of bf16 of a row
  int64_t vectors;
  const double* margins;              // of each row
  float least[kRowsAtOnce] = {};      // that a logit is looked at from; infinite where no row is
  std::vector<Candidate> found = {};  // with rows of these
  void see(int64_t row, int64_t column, float logit) {
    if (logit >= least[row]) {
      least[row] = std::max(least[row], least_beside(logit, margins[row]));
      found.push_back({row, column, logit});
    }
  }
};

#if defined(__x86_64__)
// kColumns columns from `column` on.
template <int kVectors, int kColumns>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16"), gnu::always_inline]] inline void
search_columns(const HeadArgmaxArgs& args, int64_t column, Search& search) {
  const uint16_t* weight = args.weight + column * args.width;
  const uint16_t* ahead = weight + kColumns * args.width;  // what is past the end is not read
  __m512 sum[kColumns][kVectors];
#pragma GCC unroll 24
  for (int64_t i = 0; i < kColumns * kVectors; ++i) {
    sum[i / kVectors][i % kVectors] = _mm512_setzero_ps();
  }
  const float* words = search.words;
  const auto add_word = [&](int64_t p, int64_t numbers)
      __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), always_inline)) {
    __m512bh left[kVectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) {
      left[v] = reinterpret_cast<__m512bh>(_mm512_loadu_ps(words + v * kRowsOfVector));
    }
    words += kVectors * kRowsOfVector;
#pragma GCC unroll 8
    for (int64_t j = 0; j < kColumns; ++j) {
      uint32_t word = 0;
      std::memcpy(&word, weight + j * args.width + p, numbers * sizeof(uint16_t));
      const auto right = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(word)));
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[j][v] = _mm512_dpbf16_ps(sum[j][v], left[v], right);
      }
    }
  };
  for (int64_t p = 0; p + 2 <= args.width; p += 2) {
    __builtin_prefetch(ahead + p * kColumns);
    add_word(p, 2);
  }
  if (args.width % 2 != 0) {
    add_word(args.width - 1, 1);
  }
#pragma GCC unroll 24
  for (int64_t i = 0; i < kColumns * kVectors; ++i) {
    const int64_t v = i % kVectors;
    const __m512 least = _mm512_loadu_ps(search.least + v * kRowsOfVector);
    const __m512 logits = sum[i / kVectors][v];
    if (_mm512_cmp_ps_mask(logits, least, _CMP_GE_OQ) != 0) {
      float lanes[kRowsOfVector];
      _mm512_storeu_ps(lanes, logits);
      for (int64_t row = 0; row < kRowsOfVector; ++row) {
        search.see(v * kRowsOfVector + row, column + i / kVectors, lanes[row]);
      }
    }
  }
}

template <int kVectors>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void search_range(
    const HeadArgmaxArgs& args, int64_t begin, int64_t end, Search& search) {
  int64_t column = begin;
  for (; column + 8 <= end; column += 8) {
    search_columns<kVectors, 8>(args, column, search);
  }
  for (; column < end; ++column) {
    search_columns<kVectors, 1>(args, column, search);
  }
}

void search_through(const HeadArgmaxArgs& args, int64_t begin, int64_t end, Search& search) {
  static constexpr std::array kByVectors = {search_range<1>, search_range<2>, search_range<3>};
  kByVectors.at(static_cast<size_t>(search.vectors - 1))(args, begin, end, search);
}
#else
void search_through(const HeadArgmaxArgs& /*args*/, int64_t /*begin*/, int64_t /*end*/,
                    Search& /*search*/) {
  std::abort();
}
#endif

// Up to kRowsAtOnce rows, from `first_row` on.
class RowsOfHead {
 public:
  RowsOfHead(const HeadArgmaxArgs& args, int64_t first_row)
      : args_(args),
        first_row_(first_row),
        rows_(std::min(kRowsAtOnce, args.rows - first_row)),
        vectors_((rows_ + kRowsOfVector - 1) / kRowsOfVector),
        words_(static_cast<size_t>((args.width + 1) / 2 * vectors_ * kRowsOfVector)),
        candidates_(static_cast<size_t>(rows_)) {
    std::vector<uint16_t> rounded(static_cast<size_t>(args.width) + 1);  // and a zero
    for (int64_t row = 0; row < rows_; ++row) {
      const float* numbers = args.hidden + (first_row + row) * args.width;
      f32_to_bf16(numbers, args.width, rounded.data());
      margins_.push_back(margin_of(numbers, rounded.data(), args.width, args.largest_norm));
      for (int64_t p = 0; p < args.width; p += 2) {
        std::memcpy(&words_[static_cast<size_t>(p / 2 * vectors_ * kRowsOfVector + row)],
                    rounded.data() + p, sizeof(float));
      }
    }
  }

  void search() {
    const int64_t shares = (args_.vocabulary + kColumnsOfShare - 1) / kColumnsOfShare;
    std::mutex joins;
    at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
      Search search{words_.data(), vectors_, margins_.data()};
      for (int64_t row = 0; row < kRowsAtOnce; ++row) {
        const bool is_bounded = row < rows_ && std::isfinite(margins_[static_cast<size_t>(row)]);
        search.least[row] = is_bounded ? -kInfinity : kInfinity;
      }
      search_through(args_, begin * kColumnsOfShare,
                     std::min(args_.vocabulary, end * kColumnsOfShare), search);
      const std::lock_guard lock(joins);
      for (const Candidate& candidate : search.found) {
        candidates_[static_cast<size_t>(candidate.row)].push_back(candidate);
      }
    });
  }

  void choose() {
    for (int64_t row = 0; row < rows_; ++row) {
      args_.tokens[first_row_ + row] = token(row);
    }
  }

 private:
  int64_t token(int64_t row) {
    auto& all = candidates_[static_cast<size_t>(row)];
    float largest = -kInfinity;
    for (const Candidate& candidate : all) {
      largest = std::max(largest, candidate.logit);
    }
    const float least = least_beside(largest, margins_[static_cast<size_t>(row)]);
    std::erase_if(all, [&](const Candidate& candidate) { return !(candidate.logit >= least); });
    if (all.empty() || all.size() > kMostCandidates) {
      std::vector<float> logits(static_cast<size_t>(args_.vocabulary));
      multiply(row, 0, args_.vocabulary, logits.data());
      return first_largest(logits.data(), args_.vocabulary);
    }
    std::sort(all.begin(), all.end(),
              [](const Candidate& a, const Candidate& b) { return a.column < b.column; });
    for (Candidate& candidate : all) {
      if (all.size() > 1) {
        multiply(row, candidate.column, 1, &candidate.logit);
      }
    }
    return std::max_element(
               all.begin(), all.end(),
               [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
        ->column;
  }

  // Logits of a row in f32.
  void multiply(int64_t row, int64_t column, int64_t columns, float* logits) const {
    const ColumnBlock weight{{args_.weight + column * args_.width, 1, args_.width, Dtype::kBF16},
                             columns};
    skinny_gemm({1, columns, args_.width}, args_.hidden + (first_row_ + row) * args_.width,
                {&weight, 1}, logits, columns);
  }

  const HeadArgmaxArgs& args_;
  int64_t first_row_, rows_, vectors_;
  std::vector<float> words_;  // as in Search
  std::vector<double> margins_;
  std::vector<std::vector<Candidate>> candidates_;  // of each row
};

}  // namespace

int64_t first_largest(const float* numbers, int64_t count) {
  const float* last = numbers + count;
  const float* largest = std::find(numbers, last, row_max(numbers, count));
  return largest == last ? 0 : largest - numbers;
}

double largest_row_norm_cpu(const uint16_t* bf16, int64_t rows, int64_t width) {
  double largest = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const double squares = sum_of_squares(bf16 + row * width, width);
    if (std::isnan(squares)) {
      return squares;
    }
    largest = std::max(largest, squares);
  }
  return std::sqrt(largest);
}

void head_argmax_cpu(const HeadArgmaxArgs& args) {
  for (int64_t row = 0; row < args.rows; row += kRowsAtOnce) {
    RowsOfHead rows(args, row);
    rows.search();
    rows.choose();
  }
}

}  // namespace moe::kernels
