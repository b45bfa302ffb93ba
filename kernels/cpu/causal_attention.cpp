// One head of one sequence at a time: its rows are rotated and laid out once, then blocks of query
// rows meet all keys up to their own. A block of scores [kQueryRows, keys] stays in the second
// cache. The keys of a sequence that continues another are laid out behind the other's, in place of
// those of the one before. Rows of bf16 are multiplied as such where the processor does that
// (kernels/cpu/causal_attention_bf16.h), else widened.

#include "kernels/ops/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/causal_attention_bf16.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/logsumexp.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/cached_attention.h"

namespace moe::kernels {

namespace {

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

// [length, width] -> [width, length], whose rows lie `stride` apart; four by four in registers.
void transpose(const float* from, int64_t length, int64_t width, float* to, int64_t stride) {
  using Four [[gnu::vector_size(16)]] = float;
  const int64_t whole = length / 4 * 4, whole_width = width / 4 * 4;
  for (int64_t t = 0; t < whole; t += 4) {
    for (int64_t i = 0; i < whole_width; i += 4) {
      Four in[4];
      for (int64_t r = 0; r < 4; ++r) {
        std::memcpy(&in[r], from + (t + r) * width + i, sizeof(Four));
      }
      const Four low = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Four low2 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Four high = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Four high2 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const Four out[4] = {__builtin_shufflevector(low, low2, 0, 1, 4, 5),
                           __builtin_shufflevector(low, low2, 2, 3, 6, 7),
                           __builtin_shufflevector(high, high2, 0, 1, 4, 5),
                           __builtin_shufflevector(high, high2, 2, 3, 6, 7)};
      for (int64_t r = 0; r < 4; ++r) {
        std::memcpy(to + (i + r) * stride + t, &out[r], sizeof(Four));
      }
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t t = i < whole_width ? whole : 0; t < length; ++t) {
      to[i * stride + t] = from[t * width + i];
    }
  }
}

// Of one row: to = from / by.
template <typename Number>
MOE_VECTOR_CLONES void divide_row(const float* __restrict from, float by, int64_t width,
                                  Number* __restrict to) {
  for (int64_t i = 0; i < width; ++i) {
    narrow_to(from[i] / by, to[i]);
  }
}

// scores [rows, keys] = queries [rows, A] transposed keys [A, keys], whose rows lie `stride` apart,
// for keys up to the last row's.
void score_block(const float* query, const float* transposed, int64_t rows, int64_t keys,
                 int64_t stride, int64_t width, float* scores) {
  gemm_one_thread({rows, keys, width}, {query, width, 1}, {transposed, stride, 1}, scores, keys,
                  false);
}

// Of one group, by position: keys [A, capacity] rotated and transposed, values [capacity, A].
struct KeysAndValues {
  float *keys, *values;
  int64_t capacity;
};

// Puts those of a sequence at its positions.
template <typename Number>
void lay_out(const Group<Number>& heads_of_group, float* rotated, const KeysAndValues& to) {
  const auto& in = heads_of_group.in;
  heads_of_group.rotated(heads_of_group.key_column(), 1.0F, rotated);
  transpose(rotated, in.length, heads_of_group.width(), to.keys + in.position, to.capacity);
  widen_rows(in.qkv + heads_of_group.value_column(), in.heads.row(), in.length,
             heads_of_group.width(), to.values + in.position * heads_of_group.width());
}

// Memory of attend(), for sequences of up to that many tokens.
struct AttendBuffers {
  float *query, *scores, *result;  // [length, A], [kQueryRows, capacity], [kQueryRows, A]
  static int64_t floats(int64_t length, int64_t capacity, int64_t width) {
    return length * width + kQueryRows * (capacity + width);
  }
};

// out [length, H A] of one head, whose tokens see all keys before their own position; log_sum
// [length, H], or none.
template <typename Number>
void attend(const Group<Number>& heads_of_group, int64_t head, const KeysAndValues& seen_by_all,
            const AttendBuffers& buffers, Number* out, float* log_sum) {
  const int64_t length = heads_of_group.in.length, width = heads_of_group.width(),
                heads = heads_of_group.in.heads.heads;
  const auto [query, scores, result] = buffers;
  heads_of_group.rotated(head * width, heads_of_group.scale(), query);
  for (int64_t first = 0; first < length; first += kQueryRows) {
    const int64_t rows = std::min(kQueryRows, length - first),
                  before = heads_of_group.in.position + first;
    const int64_t keys = before + rows;
    // Whole vectors of keys: what stands behind the last one is computed and not looked at.
    const int64_t stride = (keys + 15) / 16 * 16;
    score_block(query + first * width, seen_by_all.keys, rows, stride, seen_by_all.capacity, width,
                scores);
    float sums[kQueryRows];
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores + i * stride;
      const int64_t seen = before + i + 1;
      const float max = row_max(row, seen);
      sums[i] = exponentials_below(row, seen, max);
      std::fill(row + seen, row + keys, 0.0F);
      if (log_sum != nullptr) {
        log_sum[(first + i) * heads + head] = max + std::log(sums[i]);
      }
    }
    gemm_one_thread({rows, width, keys}, {scores, stride, 1}, {seen_by_all.values, width, 1},
                    result, width, false);
    for (int64_t i = 0; i < rows; ++i) {
      divide_row(result + i * width, sums[i], width,
                 out + (first + i) * heads * width + head * width);
    }
  }
}

}  // namespace

template <typename Number>
void causal_attention_forward_cpu(const AttentionInput<Number>& in, int64_t group, Number* out,
                                  float* log_sum) {
  if constexpr (std::is_same_v<Number, uint16_t>) {
    if (const TileKernel* kernel = bf16_product_kernel()) {
      return causal_attention_forward_bf16(*kernel, in, group, out, log_sum);
    }
  }
  shared_prefix_attention_cpu<Number>(in, {}, group, {out, {}}, log_sum);
}

template <typename Number>
void shared_prefix_attention_cpu(const AttentionInput<Number>& prefix,
                                 std::span<const AttentionInput<Number>> branches, int64_t group,
                                 const PrefixOutputs<Number>& outs, float* log_sum) {
  const Group<Number> of_prefix{prefix, group};
  const int64_t width = of_prefix.width();
  int64_t longest = 0;
  for (const auto& branch : branches) {
    longest = std::max(longest, branch.length);
  }
  // Rows of transposed keys begin at cache lines, as far as the memory does.
  const int64_t capacity = (prefix.length + longest + 15) / 16 * 16;
  const int64_t most = std::max(prefix.length, longest);
  Workspace space(2 * capacity * width + AttendBuffers::floats(most, capacity, width));
  const KeysAndValues seen{space.take(capacity * width), space.take(capacity * width), capacity};
  const AttendBuffers buffers{space.take(most * width), space.take(kQueryRows * capacity),
                              space.take(kQueryRows * width)};
  lay_out(of_prefix, buffers.query, seen);
  for (int64_t index = 0; index < of_prefix.shared(); ++index) {
    attend(of_prefix, of_prefix.head(index), seen, buffers, outs.prefix, log_sum);
  }
  for (size_t number = 0; number < branches.size(); ++number) {
    const Group<Number> branch{branches[number], group};
    lay_out(branch, buffers.query, seen);  // in place of the branch before
    for (int64_t index = 0; index < branch.shared(); ++index) {
      attend<Number>(branch, branch.head(index), seen, buffers, outs.branches[number], nullptr);
    }
  }
}

template <typename Number>
void causal_attention_backward_cpu(const AttentionInput<Number>& in, int64_t group,
                                   const Number* out, const float* log_sum, const Number* grad_out,
                                   Number* grad_qkv) {
  if constexpr (std::is_same_v<Number, uint16_t>) {
    if (const TileKernel* kernel = bf16_product_kernel()) {
      return causal_attention_backward_bf16(*kernel, in, group, out, log_sum, grad_out, grad_qkv);
    }
  }
  const Group<Number> heads_of_group{in, group};
  const int64_t length = in.length, width = heads_of_group.width(), heads = in.heads.heads;
  const int64_t size = length * width, row = in.heads.row();
  Workspace space(size * 10 + 2 * kQueryRows * length);
  float *query = space.take(size), *key = space.take(size), *transposed_key = space.take(size);
  float *value = space.take(size), *transposed_value = space.take(size), *result = space.take(size);
  float *grad = space.take(size), *grad_query = space.take(size);
  float *grad_key = space.take(size), *grad_value = space.take(size);
  float *p = space.take(kQueryRows * length), *dp = space.take(kQueryRows * length);
  heads_of_group.rotated(heads_of_group.key_column(), 1.0F, key);
  transpose(key, length, width, transposed_key, length);
  widen_rows(in.qkv + heads_of_group.value_column(), row, length, width, value);
  transpose(value, length, width, transposed_value, length);
  std::fill_n(grad_key, size, 0.0F);
  std::fill_n(grad_value, size, 0.0F);
  for (int64_t index = 0; index < heads_of_group.shared(); ++index) {
    const int64_t head = heads_of_group.head(index);
    heads_of_group.rotated(head * width, heads_of_group.scale(), query);
    widen_rows(out + head * width, heads * width, length, width, result);
    widen_rows(grad_out + head * width, heads * width, length, width, grad);
    for (int64_t first = 0; first < length; first += kQueryRows) {
      const int64_t rows = std::min(kQueryRows, length - first), keys = first + rows;
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

namespace {

using KeyVector [[gnu::vector_size(kKeyBlock * sizeof(float))]] = float;

// scores[p] = query [A] keys of position p, for `count` positions and what is left of a block, of
// kHeads heads at a time: queries lie A apart, scores `stride`. Four sums each, for one waits for
// the last.
template <int kHeads>
MOE_VECTOR_CLONES void score_kept(const float* query, const float* keys, int64_t count,
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

// out [A] += sum over p of share[p] values [p, A], of kHeads heads at a time: shares lie `stride`
// apart, outs A.
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

// Puts the new tokens' keys and values behind the kept ones.
template <typename Number>
void keep(const Group<Number>& heads_of_group, float* rotated, const KeptRun& own) {
  const int64_t width = heads_of_group.width(), length = heads_of_group.in.length;
  heads_of_group.rotated(heads_of_group.key_column(), 1.0F, rotated);
  for (int64_t t = 0; t < length; ++t) {
    const int64_t position = own.length + t;
    float* to = own.keys + position / kKeyBlock * width * kKeyBlock + position % kKeyBlock;
    for (int64_t i = 0; i < width; ++i) {
      to[i * kKeyBlock] = rotated[t * width + i];
    }
  }
  widen_rows(heads_of_group.in.qkv + heads_of_group.value_column(), heads_of_group.in.heads.row(),
             length, width, own.values + own.length * width);
}

// Kept keys and values at positions first .. of what attend() reads.
void lay_out_kept(const KeptRun& kept, int64_t count, int64_t first, int64_t width,
                  const KeysAndValues& to) {
  for (int64_t p = 0; p < count; p += kKeyBlock) {
    const int64_t positions = std::min(kKeyBlock, count - p);
    const float* block = kept.keys + p * width;
    for (int64_t i = 0; i < width; ++i) {
      std::copy_n(block + i * kKeyBlock, positions, to.keys + i * to.capacity + first + p);
    }
  }
  std::copy_n(kept.values, count * width, to.values + first * width);
}

// Memory of attend_once(), for kMostHeadsAtOnce heads.
constexpr int64_t kMostHeadsAtOnce = 4;
struct OnceBuffers {
  float *query, *result;  // [heads, A]
  float* scores;          // [heads, stride]
  int64_t stride;
};

// One new token's heads index .. index + kHeads - 1 of the group, which see all: out [H A].
template <int kHeads, typename Number>
void attend_once(const Group<Number>& heads_of_group, int64_t index, const KeptRun& prefix,
                 const KeptRun& own, const OnceBuffers& buffers, Number* out) {
  const int64_t width = heads_of_group.width(), own_count = own.length + 1;
  const auto [query, result, scores, stride] = buffers;
  for (int64_t i = 0; i < kHeads; ++i) {
    heads_of_group.rotated(heads_of_group.head(index + i) * width, heads_of_group.scale(),
                           query + i * width);
  }
  score_kept<kHeads>(query, prefix.keys, prefix.length, width, scores, stride);
  float* own_scores = scores + prefix.length;  // in place of what was left of the last block
  score_kept<kHeads>(query, own.keys, own_count, width, own_scores, stride);
  const int64_t seen = prefix.length + own_count;
  float sums[kHeads];
  for (int64_t i = 0; i < kHeads; ++i) {
    sums[i] = exponentials_below(scores + i * stride, seen, row_max(scores + i * stride, seen));
  }
  std::fill_n(result, kHeads * width, 0.0F);
  add_values<kHeads>(scores, stride, prefix.values, prefix.length, width, result);
  add_values<kHeads>(own_scores, stride, own.values, own_count, width, result);
  for (int64_t i = 0; i < kHeads; ++i) {
    divide_row(result + i * width, sums[i], width, out + heads_of_group.head(index + i) * width);
  }
}

// All heads of the group: some at a time, so that keys and values are read once for them.
template <typename Number>
void attend_once(const Group<Number>& heads_of_group, const KeptRun& prefix, const KeptRun& own,
                 const OnceBuffers& buffers, Number* out) {
  const int64_t heads = heads_of_group.shared();
  int64_t index = 0;
  for (; index + 4 <= heads; index += 4) {
    attend_once<4>(heads_of_group, index, prefix, own, buffers, out);
  }
  for (; index + 2 <= heads; index += 2) {
    attend_once<2>(heads_of_group, index, prefix, own, buffers, out);
  }
  for (; index < heads; ++index) {
    attend_once<1>(heads_of_group, index, prefix, own, buffers, out);
  }
}

}  // namespace

template <typename Number>
void cached_attention_cpu(const AttentionInput<Number>& in, int64_t group, const KeptRun& prefix,
                          const KeptRun& own, Number* out) {
  const Group<Number> heads_of_group{in, group};
  const int64_t width = heads_of_group.width(), length = in.length;
  const int64_t capacity = (in.position + length + kKeyBlock) / 16 * 16 + kKeyBlock;
  static thread_local Scratch scratch;
  if (length == 1) {
    const int64_t rows = kMostHeadsAtOnce * width;
    float* query = scratch.floats(2 * rows + kMostHeadsAtOnce * capacity);
    keep(heads_of_group, query, own);
    attend_once(heads_of_group, prefix, own, {query, query + rows, query + 2 * rows, capacity},
                out);
    return;
  }
  const int64_t laid_out = capacity * width;
  float* query = scratch.floats(2 * laid_out + AttendBuffers::floats(length, capacity, width));
  const AttendBuffers buffers{query, query + length * width,
                              query + length * width + kQueryRows * capacity};
  keep(heads_of_group, query, own);
  float* keys = buffers.result + kQueryRows * width;
  const KeysAndValues seen{keys, keys + laid_out, capacity};
  lay_out_kept(prefix, prefix.length, 0, width, seen);
  lay_out_kept(own, own.length + length, prefix.length, width, seen);
  for (int64_t index = 0; index < heads_of_group.shared(); ++index) {
    attend<Number>(heads_of_group, heads_of_group.head(index), seen, buffers, out, nullptr);
  }
}

template void cached_attention_cpu(const AttentionInput<float>&, int64_t, const KeptRun&,
                                   const KeptRun&, float*);
template void cached_attention_cpu(const AttentionInput<uint16_t>&, int64_t, const KeptRun&,
                                   const KeptRun&, uint16_t*);
template void causal_attention_forward_cpu(const AttentionInput<float>&, int64_t, float*, float*);
template void causal_attention_forward_cpu(const AttentionInput<uint16_t>&, int64_t, uint16_t*,
                                           float*);
template void shared_prefix_attention_cpu(const AttentionInput<float>&,
                                          std::span<const AttentionInput<float>>, int64_t,
                                          const PrefixOutputs<float>&, float*);
template void shared_prefix_attention_cpu(const AttentionInput<uint16_t>&,
                                          std::span<const AttentionInput<uint16_t>>, int64_t,
                                          const PrefixOutputs<uint16_t>&, float*);
template void causal_attention_backward_cpu(const AttentionInput<float>&, int64_t, const float*,
                                            const float*, const float*, float*);
template void causal_attention_backward_cpu(const AttentionInput<uint16_t>&, int64_t,
                                            const uint16_t*, const float*, const uint16_t*,
                                            uint16_t*);

}  // namespace moe::kernels
