// One head of one sequence at a time: its rows are rotated and laid out once, then blocks of query
// rows meet all keys up to their own. A block of scores [kRows, keys] stays in the second cache.

#include "kernels/ops/causal_attention.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/logsumexp.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kRows = 48;

// z[0 .. count) becomes exp(z - minus); returns their sum.
MOE_VECTOR_CLONES float exponentials_below(float* z, int64_t count, float minus) {
  return vector_sum<float>(count,
                           [=](int64_t i) { return z[i] = vector_exp_negative(z[i] - minus); });
}

// s = p * (dp - delta)
MOE_VECTOR_CLONES void score_gradients(const float* p, float* dp, int64_t count, float delta) {
  for (int64_t i = 0; i < count; ++i) {
    dp[i] = p[i] * (dp[i] - delta);
  }
}

// Rows of one head, `stride` apart -> to [length, width] f32, rotated and scaled.
template <typename Number>
MOE_VECTOR_CLONES void rotate(const Number* __restrict from, int64_t stride, const float* cosine,
                              const float* sine, int64_t length, int64_t width, float scale,
                              float* __restrict to) {
  const int64_t half = width / 2;
  for (int64_t t = 0; t < length; ++t) {
    const Number* x = from + t * stride;
    const float *c = cosine + t * width, *s = sine + t * width;
    float* y = to + t * width;
    for (int64_t i = 0; i < half; ++i) {
      const float low = widen(x[i]), high = widen(x[half + i]);
      y[i] = (low * c[i] - high * s[i]) * scale;
      y[half + i] = (high * c[half + i] + low * s[half + i]) * scale;
    }
  }
}

// The transpose of it: gradients of the rotated rows -> of the rows.
template <typename Number>
MOE_VECTOR_CLONES void rotate_back(const float* __restrict from, const float* cosine,
                                   const float* sine, int64_t length, int64_t width, float scale,
                                   Number* __restrict to, int64_t stride) {
  const int64_t half = width / 2;
  for (int64_t t = 0; t < length; ++t) {
    const float *y = from + t * width, *c = cosine + t * width, *s = sine + t * width;
    Number* x = to + t * stride;
    for (int64_t i = 0; i < half; ++i) {
      const float low = y[i], high = y[half + i];
      narrow_to((low * c[i] + high * s[half + i]) * scale, x[i]);
      narrow_to((high * c[half + i] - low * s[i]) * scale, x[half + i]);
    }
  }
}

template <typename Number>
void widen_rows(const Number* from, int64_t stride, int64_t length, int64_t width, float* to) {
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      to[t * width + i] = widen(from[t * stride + i]);
    }
  }
}

template <typename Number>
void narrow_rows(const float* from, int64_t length, int64_t width, Number* to, int64_t stride) {
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      narrow_to(from[t * width + i], to[t * stride + i]);
    }
  }
}

// [length, width] -> [width, length]
void transpose(const float* from, int64_t length, int64_t width, float* to) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t t = 0; t < length; ++t) {
      to[i * length + t] = from[t * width + i];
    }
  }
}

// Scratch memory for one head, handed out from one allocation.
class Workspace {
 public:
  explicit Workspace(int64_t floats)
      : memory_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(floats) * sizeof(float))),
        next_(static_cast<float*>(memory_.get())) {}
  float* take(int64_t floats) { return std::exchange(next_, next_ + floats); }

 private:
  c10::DataPtr memory_;
  float* next_;
};

// The heads of one group and where they lie.
template <typename Number>
struct Group {
  const AttentionInput<Number>& in;
  int64_t group;

  int64_t width() const { return in.heads.width; }
  int64_t shared() const { return in.heads.heads / in.heads.kv_heads; }
  int64_t head(int64_t index) const { return group * shared() + index; }
  int64_t key_column() const { return (in.heads.heads + group) * width(); }
  int64_t value_column() const { return key_column() + in.heads.kv_heads * width(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(width())); }

  void rotated(int64_t column, float by, float* to) const {
    rotate(in.qkv + column, in.heads.row(), in.cosine, in.sine, in.length, width(), by, to);
  }
};

// scores [rows, keys] = queries [rows, A] transposed keys [A, length], for keys up to the last
// row's.
void score_block(const float* query, const float* transposed, int64_t rows, int64_t keys,
                 int64_t length, int64_t width, float* scores) {
  gemm_one_thread({rows, keys, width}, {query, width, 1}, {transposed, length, 1}, scores, keys,
                  false);
}

}  // namespace

template <typename Number>
void causal_attention_forward_cpu(const AttentionInput<Number>& in, int64_t group, Number* out,
                                  float* log_sum) {
  const Group<Number> heads_of_group{in, group};
  const int64_t length = in.length, width = heads_of_group.width(), heads = in.heads.heads;
  Workspace space(length * width * 4 + kRows * (length + width));
  float *query = space.take(length * width), *key = space.take(length * width);
  float *transposed = space.take(length * width), *value = space.take(length * width);
  float *scores = space.take(kRows * length), *result = space.take(kRows * width);
  heads_of_group.rotated(heads_of_group.key_column(), 1.0F, key);
  transpose(key, length, width, transposed);
  widen_rows(in.qkv + heads_of_group.value_column(), in.heads.row(), length, width, value);
  for (int64_t index = 0; index < heads_of_group.shared(); ++index) {
    const int64_t head = heads_of_group.head(index);
    heads_of_group.rotated(head * width, heads_of_group.scale(), query);
    for (int64_t first = 0; first < length; first += kRows) {
      const int64_t rows = std::min(kRows, length - first), keys = first + rows;
      score_block(query + first * width, transposed, rows, keys, length, width, scores);
      float sums[kRows];
      for (int64_t i = 0; i < rows; ++i) {
        float* row = scores + i * keys;
        const int64_t seen = first + i + 1;
        const float max = row_max(row, seen);
        sums[i] = exponentials_below(row, seen, max);
        std::fill(row + seen, row + keys, 0.0F);
        log_sum[(first + i) * heads + head] = max + std::log(sums[i]);
      }
      gemm_one_thread({rows, width, keys}, {scores, keys, 1}, {value, width, 1}, result, width,
                      false);
      for (int64_t i = 0; i < rows; ++i) {
        Number* to = out + (first + i) * heads * width + head * width;
        for (int64_t j = 0; j < width; ++j) {
          narrow_to(result[i * width + j] / sums[i], to[j]);
        }
      }
    }
  }
}

template <typename Number>
void causal_attention_backward_cpu(const AttentionInput<Number>& in, int64_t group,
                                   const Number* out, const float* log_sum, const Number* grad_out,
                                   Number* grad_qkv) {
  const Group<Number> heads_of_group{in, group};
  const int64_t length = in.length, width = heads_of_group.width(), heads = in.heads.heads;
  const int64_t size = length * width, row = in.heads.row();
  Workspace space(size * 10 + 2 * kRows * length);
  float *query = space.take(size), *key = space.take(size), *transposed_key = space.take(size);
  float *value = space.take(size), *transposed_value = space.take(size), *result = space.take(size);
  float *grad = space.take(size), *grad_query = space.take(size);
  float *grad_key = space.take(size), *grad_value = space.take(size);
  float *p = space.take(kRows * length), *dp = space.take(kRows * length);
  heads_of_group.rotated(heads_of_group.key_column(), 1.0F, key);
  transpose(key, length, width, transposed_key);
  widen_rows(in.qkv + heads_of_group.value_column(), row, length, width, value);
  transpose(value, length, width, transposed_value);
  std::fill_n(grad_key, size, 0.0F);
  std::fill_n(grad_value, size, 0.0F);
  for (int64_t index = 0; index < heads_of_group.shared(); ++index) {
    const int64_t head = heads_of_group.head(index);
    heads_of_group.rotated(head * width, heads_of_group.scale(), query);
    widen_rows(out + head * width, heads * width, length, width, result);
    widen_rows(grad_out + head * width, heads * width, length, width, grad);
    for (int64_t first = 0; first < length; first += kRows) {
      const int64_t rows = std::min(kRows, length - first), keys = first + rows;
      const float *q = query + first * width, *dy = grad + first * width;
      score_block(q, transposed_key, rows, keys, length, width, p);
      score_block(dy, transposed_value, rows, keys, length, width, dp);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = first + i + 1;
        const float* y = result + (first + i) * width;
        const float delta = std::inner_product(y, y + width, dy + i * width, 0.0F);
        exponentials_below(p + i * keys, seen, log_sum[(first + i) * heads + head]);
        score_gradients(p + i * keys, dp + i * keys, seen, delta);
        std::fill(p + i * keys + seen, p + (i + 1) * keys, 0.0F);
        std::fill(dp + i * keys + seen, dp + (i + 1) * keys, 0.0F);
      }
      const MatrixView share{p, keys, 1}, slope{dp, keys, 1};
      gemm_one_thread({rows, width, keys}, slope, {key, width, 1}, grad_query + first * width,
                      width, false);
      gemm_one_thread({keys, width, rows}, slope.transposed(), {q, width, 1}, grad_key, width,
                      true);
      gemm_one_thread({keys, width, rows}, share.transposed(), {dy, width, 1}, grad_value, width,
                      true);
    }
    rotate_back(grad_query, in.cosine, in.sine, length, width, heads_of_group.scale(),
                grad_qkv + head * width, row);
  }
  rotate_back(grad_key, in.cosine, in.sine, length, width, 1.0F,
              grad_qkv + heads_of_group.key_column(), row);
  narrow_rows(grad_value, length, width, grad_qkv + heads_of_group.value_column(), row);
}

template void causal_attention_forward_cpu(const AttentionInput<float>&, int64_t, float*, float*);
template void causal_attention_forward_cpu(const AttentionInput<uint16_t>&, int64_t, uint16_t*,
                                           float*);
template void causal_attention_backward_cpu(const AttentionInput<float>&, int64_t, const float*,
                                            const float*, const float*, float*);
template void causal_attention_backward_cpu(const AttentionInput<uint16_t>&, int64_t,
                                            const uint16_t*, const float*, const uint16_t*,
                                            uint16_t*);

}  // namespace moe::kernels
