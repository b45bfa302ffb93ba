// Computes one head of one sequence at a time. The rows of the head are rotated and packed once.
// Each block of query rows is multiplied by the keys up to the position of its last row; its scores
// [kQueryRows, keys] stay in the L2 cache. bf16 rows use bf16 products if the CPU has the
// instructions, else they are widened.

#include "kernels/cpu/causal_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Writes rows of one head, `stride` apart, to `to` [length, width], rotated and multiplied by
// `scale`.
template <typename Number>
MOE_VECTOR_CLONES void rotate_rows(const Number* __restrict from, int64_t stride,
                                   const float* cosine, const float* sine, int64_t length,
                                   int64_t width, float scale, float* __restrict to) {
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

// Writes the gradients of the rows from the gradients of the rotated rows (transpose of
// rotate_rows()).
template <typename Number>
MOE_VECTOR_CLONES void rotate_rows_back(const float* __restrict from, const float* cosine,
                                        const float* sine, int64_t length, int64_t width,
                                        float scale, Number* __restrict to, int64_t stride) {
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

// Transposes [length, width] to [width, length] with a row stride of `stride`.
void transpose(const float* from, int64_t length, int64_t width, float* to, int64_t stride) {
  const int64_t whole = length / 4 * 4;
  for (int64_t t = 0; t < whole; t += 4) {
    transpose_four_rows(from + t * width, width, width, stride, to + t);
  }
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t t = whole; t < length; ++t) {
      to[i * stride + t] = from[t * width + i];
    }
  }
}

// Divides one row by `divisor`.
template <typename Number>
MOE_VECTOR_CLONES void divide_row(const float* __restrict from, float divisor, int64_t width,
                                  Number* __restrict to) {
  for (int64_t i = 0; i < width; ++i) {
    narrow_to(from[i] / divisor, to[i]);
  }
}

// Computes scores [rows, keys] = query [rows, A] * transposed [A, keys]. `stride` is the row stride
// of `transposed`.
void score_block(const float* query, const float* transposed, int64_t rows, int64_t keys,
                 int64_t stride, int64_t width, float* scores) {
  gemm_one_thread({rows, keys, width}, {query, width, 1}, {transposed, stride, 1}, scores, keys,
                  false);
}

// Keys and values of one group by position: keys [A, capacity] rotated and transposed, values
// [capacity, A].
struct KeysAndValues {
  float *keys, *values;
  int64_t capacity;
};

// Writes the keys and values of a sequence at its positions.
template <typename Number>
void write_keys_values(const AttentionGroup<Number>& head_group, float* rotated,
                       const KeysAndValues& to) {
  const auto& in = head_group.in;
  head_group.rotate(head_group.key_column(), 1.0F, rotated);
  transpose(rotated, in.length, in.heads.width, to.keys + in.position, to.capacity);
  widen_rows(in.qkv + head_group.value_column(), in.heads.row(), in.length, in.heads.width,
             to.values + in.position * in.heads.width);
}

// Scratch memory of attend().
struct AttendBuffers {
  float *query, *scores, *result;  // [length, A], [kQueryRows, capacity], [kQueryRows, A]
  static int64_t floats(int64_t length, int64_t capacity, int64_t width) {
    return length * width + kQueryRows * (capacity + width);
  }
};

// Computes out [length, H A] of one head, whose tokens attend to all earlier positions, and log_sum
// [length, H] unless it is null.
template <typename Number>
void attend(const AttentionGroup<Number>& head_group, int64_t head, const KeysAndValues& past,
            const AttendBuffers& buffers, Number* out, float* log_sum) {
  const auto& in = head_group.in;
  const int64_t length = in.length, width = in.heads.width, heads = in.heads.heads;
  const auto [query, scores, result] = buffers;
  head_group.rotate(head * width, head_group.scale(), query);
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const int64_t rows = std::min(kQueryRows, length - first);
    const int64_t before = in.position + first, keys = before + rows;
    // Rounded up to whole vectors: scores after the last key are computed and ignored.
    const int64_t stride = (keys + 15) / 16 * 16;
    score_block(query + first * width, past.keys, rows, stride, past.capacity, width, scores);
    float sums[kQueryRows];
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores + i * stride;
      const int64_t visible = before + i + 1;
      const float max = row_max(row, visible);
      sums[i] = exponentials_below(row, visible, max);
      std::fill(row + visible, row + keys, 0.0F);
      if (log_sum != nullptr) {
        log_sum[(first + i) * heads + head] = max + std::log(sums[i]);
      }
    }
    gemm_one_thread({rows, width, keys}, {scores, stride, 1}, {past.values, width, 1}, result,
                    width, false);
    for (int64_t i = 0; i < rows; ++i) {
      divide_row(result + i * width, sums[i], width, out + ((first + i) * heads + head) * width);
    }
  }
}

using KeyVector [[gnu::vector_size(kKeyBlock * sizeof(float))]] = float;

// Computes scores[p] = <query [A], key of position p> for kHeads heads and `count` positions,
// rounded up to a block. The stride between heads is A for queries and `stride` for scores. Four
// sums per head hide the latency of FMA.
template <int kHeads>
MOE_VECTOR_CLONES void score_cached_keys(const float* query, const float* keys, int64_t count,
                                         int64_t width, float* scores, int64_t stride) {
  for (int64_t first = 0; first < count; first += kKeyBlock, keys += width * kKeyBlock) {
    KeyVector sum[kHeads][4] = {};
    int64_t i = 0;
    for (; i + 4 <= width; i += 4) {
      for (int64_t j = 0; j < 4; ++j) {
        KeyVector key;
        std::memcpy(&key, keys + (i + j) * kKeyBlock, sizeof(key));
        for (int64_t head = 0; head < kHeads; ++head) {
          sum[head][j] += query[head * width + i + j] * key;
        }
      }
    }
    for (; i < width; ++i) {
      KeyVector key;
      std::memcpy(&key, keys + i * kKeyBlock, sizeof(key));
      for (int64_t head = 0; head < kHeads; ++head) {
        sum[head][0] += query[head * width + i] * key;
      }
    }
    for (int64_t head = 0; head < kHeads; ++head) {
      const KeyVector whole = (sum[head][0] + sum[head][1]) + (sum[head][2] + sum[head][3]);
      std::memcpy(scores + head * stride + first, &whole, sizeof(whole));
    }
  }
}

// Adds to out [A] the sum over p of share[p] * values [p, A], for kHeads heads. The stride between
// heads is `stride` for shares and A for outputs.
template <int kHeads>
MOE_VECTOR_CLONES void add_values(const float* share, int64_t stride, const float* values,
                                  int64_t count, int64_t width, float* out) {
  constexpr int64_t kLanes = 16, kVectors = 4;
  int64_t column = 0;
  for (; column + kVectors * kLanes <= width; column += kVectors * kLanes) {
    KeyVector sum[kHeads][kVectors];
    for (int64_t head = 0; head < kHeads; ++head) {
      std::memcpy(sum[head], out + head * width + column, sizeof(sum[head]));
    }
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t j = 0; j < kVectors; ++j) {
        KeyVector value;
        std::memcpy(&value, values + p * width + column + j * kLanes, sizeof(value));
        for (int64_t head = 0; head < kHeads; ++head) {
          sum[head][j] += share[head * stride + p] * value;
        }
      }
    }
    for (int64_t head = 0; head < kHeads; ++head) {
      std::memcpy(out + head * width + column, sum[head], sizeof(sum[head]));
    }
  }
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t p = 0; p < count && column < width; ++p) {
      for (int64_t i = column; i < width; ++i) {
        out[head * width + i] += share[head * stride + p] * values[p * width + i];
      }
    }
  }
}

// Appends the keys and values of new tokens to the cache.
template <typename Number>
void append_to_cache(const AttentionGroup<Number>& head_group, float* rotated, const KvRun& own) {
  const auto& in = head_group.in;
  const int64_t width = in.heads.width;
  head_group.rotate(head_group.key_column(), 1.0F, rotated);
  for (int64_t t = 0; t < in.length; ++t) {
    const int64_t position = own.length + t;
    float* to = own.keys + position / kKeyBlock * width * kKeyBlock + position % kKeyBlock;
    for (int64_t i = 0; i < width; ++i) {
      to[i * kKeyBlock] = rotated[t * width + i];
    }
  }
  widen_rows(in.qkv + head_group.value_column(), in.heads.row(), in.length, width,
             own.values + own.length * width);
}

// Copies `count` cached keys and values to positions first .. first + count - 1 of `to`.
void write_cached_keys_values(const KvRun& cached, int64_t count, int64_t first, int64_t width,
                              const KeysAndValues& to) {
  for (int64_t p = 0; p < count; p += kKeyBlock) {
    const int64_t positions = std::min(kKeyBlock, count - p);
    const float* block = cached.keys + p * width;
    for (int64_t i = 0; i < width; ++i) {
      std::copy_n(block + i * kKeyBlock, positions, to.keys + i * to.capacity + first + p);
    }
  }
  std::copy_n(cached.values, count * width, to.values + first * width);
}

constexpr int64_t kMaxHeads = 4;  // heads of one pass over keys and values

// Scratch memory of attend_one_token().
struct OneTokenBuffers {
  float *query, *result;  // [heads, A]
  float* scores;          // [heads, stride]
  int64_t stride;
};

// Computes heads index .. index + kHeads - 1 of the group for one new token, which attends to all
// positions. Writes to out [H A].
template <int kHeads, typename Number>
void attend_one_token(const AttentionGroup<Number>& head_group, int64_t index, const KvRun& prefix,
                      const KvRun& own, const OneTokenBuffers& buffers, Number* out) {
  const int64_t width = head_group.width(), own_count = own.length + 1;
  const auto [query, result, scores, stride] = buffers;
  for (int64_t i = 0; i < kHeads; ++i) {
    head_group.rotate(head_group.head(index + i) * width, head_group.scale(), query + i * width);
  }
  score_cached_keys<kHeads>(query, prefix.keys, prefix.length, width, scores, stride);
  float* own_scores = scores + prefix.length;  // overwrites the padding of the last block
  score_cached_keys<kHeads>(query, own.keys, own_count, width, own_scores, stride);
  const int64_t visible = prefix.length + own_count;
  float sums[kHeads];
  for (int64_t i = 0; i < kHeads; ++i) {
    float* row = scores + i * stride;
    sums[i] = exponentials_below(row, visible, row_max(row, visible));
  }
  std::fill_n(result, kHeads * width, 0.0F);
  add_values<kHeads>(scores, stride, prefix.values, prefix.length, width, result);
  add_values<kHeads>(own_scores, stride, own.values, own_count, width, result);
  for (int64_t i = 0; i < kHeads; ++i) {
    divide_row(result + i * width, sums[i], width, out + head_group.head(index + i) * width);
  }
}

}  // namespace

MOE_VECTOR_CLONES float exponentials_below(float* z, int64_t count, float bound) {
  return vector_sum<float>(count,
                           [=](int64_t i) { return z[i] = vector_exp_negative(z[i] - bound); });
}

MOE_VECTOR_CLONES void score_gradients(const float* p, float* dp, int64_t count, float delta) {
  for (int64_t i = 0; i < count; ++i) {
    dp[i] = p[i] * (dp[i] - delta);
  }
}

template <typename T>
void AttentionGroup<T>::rotate(int64_t column, float factor, float* to) const {
  rotate_rows(in.qkv + column, in.heads.row(), in.cosine, in.sine, in.length, width(), factor, to);
}

template <typename T>
void AttentionGroup<T>::rotate_back(const float* from, float factor, T* to) const {
  rotate_rows_back(from, in.cosine, in.sine, in.length, width(), factor, to, in.heads.row());
}

template struct AttentionGroup<float>;
template struct AttentionGroup<uint16_t>;

template <typename Number>
void AttentionCpu<Number>::forward(const AttentionInput<Number>& in, int64_t group, Number* out,
                                   float* log_sum) {
  if constexpr (std::is_same_v<Number, uint16_t>) {
    if (const TileKernel* kernel = bf16_product_kernel()) {
      return causal_attention_forward_bf16(*kernel, in, group, out, log_sum);
    }
  }
  shared_prefix(in, {}, group, {out, {}}, log_sum);
}

template <typename Number>
void AttentionCpu<Number>::shared_prefix(const AttentionInput<Number>& prefix,
                                         std::span<const AttentionInput<Number>> branches,
                                         int64_t group, const PrefixOutputs<Number>& outs,
                                         float* log_sum) {
  const AttentionGroup<Number> prefix_group{prefix, group};
  const int64_t width = prefix_group.width();
  int64_t longest = 0;  // length of the longest branch
  for (const auto& branch : branches) {
    longest = std::max(longest, branch.length);
  }
  // Aligns the rows of transposed keys to cache lines.
  const int64_t capacity = (prefix.length + longest + 15) / 16 * 16;
  const int64_t max_length = std::max(prefix.length, longest);
  Workspace space(2 * capacity * width + AttendBuffers::floats(max_length, capacity, width));
  const KeysAndValues keys_values{space.take(capacity * width), space.take(capacity * width),
                                  capacity};
  const AttendBuffers buffers{space.take(max_length * width), space.take(kQueryRows * capacity),
                              space.take(kQueryRows * width)};
  write_keys_values(prefix_group, buffers.query, keys_values);
  for (int64_t index = 0; index < prefix_group.shared(); ++index) {
    attend(prefix_group, prefix_group.head(index), keys_values, buffers, outs.prefix, log_sum);
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    const AttentionGroup<Number> branch{branches[i], group};
    write_keys_values(branch, buffers.query, keys_values);  // overwrites the previous branch
    for (int64_t index = 0; index < branch.shared(); ++index) {
      attend<Number>(branch, branch.head(index), keys_values, buffers, outs.branches[i], nullptr);
    }
  }
}

template <typename Number>
void AttentionCpu<Number>::backward(const AttentionInput<Number>& in, int64_t group,
                                    const Number* out, const float* log_sum, const Number* grad_out,
                                    Number* grad_qkv) {
  if constexpr (std::is_same_v<Number, uint16_t>) {
    if (const TileKernel* kernel = bf16_product_kernel()) {
      return causal_attention_backward_bf16(*kernel, in, group, out, log_sum, grad_out, grad_qkv);
    }
  }
  const AttentionGroup<Number> head_group{in, group};
  const int64_t length = in.length, width = head_group.width(), heads = in.heads.heads;
  const int64_t size = length * width, row = in.heads.row();
  Workspace space(size * 10 + 2 * kQueryRows * length);
  float *query = space.take(size), *key = space.take(size), *transposed_key = space.take(size);
  float *value = space.take(size), *transposed_value = space.take(size), *result = space.take(size);
  float *grad = space.take(size), *grad_query = space.take(size);
  float *grad_key = space.take(size), *grad_value = space.take(size);
  float *p = space.take(kQueryRows * length), *dp = space.take(kQueryRows * length);
  head_group.rotate(head_group.key_column(), 1.0F, key);
  transpose(key, length, width, transposed_key, length);
  widen_rows(in.qkv + head_group.value_column(), row, length, width, value);
  transpose(value, length, width, transposed_value, length);
  std::fill_n(grad_key, size, 0.0F);
  std::fill_n(grad_value, size, 0.0F);
  for (int64_t index = 0; index < head_group.shared(); ++index) {
    const int64_t head = head_group.head(index);
    head_group.rotate(head * width, head_group.scale(), query);
    widen_rows(out + head * width, heads * width, length, width, result);
    widen_rows(grad_out + head * width, heads * width, length, width, grad);
    for (int64_t first = 0; first < length; first += kQueryRows) {
      const int64_t rows = std::min(kQueryRows, length - first), keys = first + rows;
      const float *q = query + first * width, *dy = grad + first * width;
      score_block(q, transposed_key, rows, keys, length, width, p);
      score_block(dy, transposed_value, rows, keys, length, width, dp);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t visible = first + i + 1;
        const float* y = result + (first + i) * width;
        const float delta = std::inner_product(y, y + width, dy + i * width, 0.0F);
        exponentials_below(p + i * keys, visible, log_sum[(first + i) * heads + head]);
        score_gradients(p + i * keys, dp + i * keys, visible, delta);
        std::fill(p + i * keys + visible, p + (i + 1) * keys, 0.0F);
        std::fill(dp + i * keys + visible, dp + (i + 1) * keys, 0.0F);
      }
      const MatrixView share{p, keys, 1}, slope{dp, keys, 1};
      gemm_one_thread({rows, width, keys}, slope, {key, width, 1}, grad_query + first * width,
                      width, false);
      gemm_one_thread({keys, width, rows}, slope.transposed(), {q, width, 1}, grad_key, width,
                      true);
      gemm_one_thread({keys, width, rows}, share.transposed(), {dy, width, 1}, grad_value, width,
                      true);
    }
    head_group.rotate_back(grad_query, head_group.scale(), grad_qkv + head * width);
  }
  head_group.rotate_back(grad_key, 1.0F, grad_qkv + head_group.key_column());
  narrow_rows(grad_value, length, width, grad_qkv + head_group.value_column(), row);
}

template <typename Number>
void AttentionCpu<Number>::cached(const AttentionInput<Number>& in, int64_t group,
                                  const KvRun& prefix, const KvRun& own, Number* out) {
  const AttentionGroup<Number> head_group{in, group};
  const int64_t width = head_group.width(), length = in.length;
  const int64_t capacity = (in.position + length + kKeyBlock) / 16 * 16 + kKeyBlock;
  static thread_local Scratch scratch;
  if (length == 1) {
    const int64_t rows = kMaxHeads * width;
    float* query = scratch.floats(2 * rows + kMaxHeads * capacity);
    append_to_cache(head_group, query, own);
    for (int64_t index = 0, heads = 0; index < head_group.shared(); index += heads) {
      heads = head_group.shared() - index >= 4 ? 4 : head_group.shared() - index >= 2 ? 2 : 1;
      const auto attend_heads = heads == 4   ? attend_one_token<4, Number>
                                : heads == 2 ? attend_one_token<2, Number>
                                             : attend_one_token<1, Number>;
      attend_heads(head_group, index, prefix, own,
                   {query, query + rows, query + 2 * rows, capacity}, out);
    }
    return;
  }
  const int64_t numel = capacity * width;
  float* query = scratch.floats(2 * numel + AttendBuffers::floats(length, capacity, width));
  const AttendBuffers buffers{query, query + length * width,
                              query + length * width + kQueryRows * capacity};
  append_to_cache(head_group, query, own);
  float* keys = buffers.result + kQueryRows * width;
  const KeysAndValues keys_values{keys, keys + numel, capacity};
  write_cached_keys_values(prefix, prefix.length, 0, width, keys_values);
  write_cached_keys_values(own, own.length + length, prefix.length, width, keys_values);
  for (int64_t index = 0; index < head_group.shared(); ++index) {
    attend<Number>(head_group, head_group.head(index), keys_values, buffers, out, nullptr);
  }
}

template struct AttentionCpu<float>;
template struct AttentionCpu<uint16_t>;

}  // namespace moe::kernels
