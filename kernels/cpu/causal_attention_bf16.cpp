// Causal attention with bf16 products (causal_attention.h). Queries, keys, values and gradients are
// packed once per head and used for several products.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/causal_attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t even(int64_t count) { return (count + 1) / 2 * 2; }

MOE_VECTOR_CLONES float dot_bf16(const uint16_t* a, const uint16_t* b, int64_t count) {
  return vector_sum<float>(count, [=](int64_t i) { return widen(a[i]) * widen(b[i]); });
}

MOE_VECTOR_CLONES void divide_to_bf16(const float* from, int64_t count, float divisor,
                                      uint16_t* bf16) {
  for (int64_t i = 0; i < count; ++i) {
    narrow_to(from[i] / divisor, bf16[i]);
  }
}

// Matrix B [k, n] in bf16, packed once for several products: keys, values, queries, gradients.
class PackedMatrix {
 public:
  PackedMatrix(const TileKernel& kernel, int64_t k, int64_t n)
      : kernel_(kernel),
        k_(k),
        n_(n),
        space_(num_words(kernel.word, k) * (n + kernel.width)),
        buffer_(space_.take(0)) {}
  void pack(const MatrixView& b) { strips_ = pack_strips(kernel_, b, n_, k_, buffer_); }

  // Returns the strips of the first `count` columns.
  std::span<const Strip> columns(int64_t count) const {
    return {strips_.begin(), std::find_if(strips_.begin(), strips_.end(), [&](const Strip& strip) {
              return strip.first >= count;
            })};
  }
  // Returns all strips, with the depth from `word` on.
  std::vector<Strip> from_word(int64_t word) const {
    std::vector<Strip> strips = strips_;
    for (Strip& strip : strips) {
      strip.data += word * strip.stride;
    }
    return strips;
  }

 private:
  const TileKernel& kernel_;
  int64_t k_, n_;
  Workspace space_;
  float* buffer_;  // all of space_
  std::vector<Strip> strips_;
};

struct QueryBlock {
  int64_t first, rows;
  int64_t keys() const { return first + rows; }  // visible to its last row

  // Calls each(first row in the block, rows, keys visible to the last row) for each tile of rows.
  template <typename Each>
  void for_each_tile(const TileKernel& kernel, Each each) const {
    for (int64_t i = 0; i < rows; i += kernel.rows) {
      const int64_t height = std::min(kernel.rows, rows - i);
      each(i, height, first + i + height);
    }
  }
};

// Returns a view of bf16 rows as operand A of multiply_row_block(). REQUIRES: an even stride.
RowsOfA as_words(const uint16_t* from, int64_t stride, int64_t tile_rows) {
  return {reinterpret_cast<const float*>(from), stride / 2, 1, tile_rows * stride / 2};
}

// Products of one head group. The scores of a block have a row stride of score_row(). The softmax
// is f32. Its rows are rounded one by one for products over keys, in pairs for products over
// queries.
struct BF16Products {
  const TileKernel& kernel;
  AttentionGroup<uint16_t> head_group;

  int64_t length() const { return head_group.in.length; }
  int64_t width() const { return head_group.width(); }
  int64_t score_row() const { return even(length()); }

  // Writes the head at `column`, rotated and multiplied by `scale`, to `to` in bf16 and `wide` in
  // f32.
  void rotate(int64_t column, float scale, float* wide, uint16_t* to) const {
    head_group.rotate(column, scale, wide);
    f32_to_bf16_ftz(wide, length() * width(), to);
  }

  // Computes scores [rows, keys] = a [rows, A] b [A, length]. Skips some scores of future keys.
  void scores(const QueryBlock& block, const uint16_t* a, int64_t stride, const PackedMatrix& b,
              float* to) const {
    block.for_each_tile(kernel, [&](int64_t i, int64_t rows, int64_t visible) {
      multiply_row_block(kernel, as_words(a + (block.first + i) * stride, stride, kernel.rows),
                         rows, width() / 2, b.columns(visible), to + i * score_row(), score_row(),
                         false);
    });
  }
  // Computes to [rows, A] = a [rows, keys] b [length, A]. `a` must be 0 for future keys.
  void over_keys(const QueryBlock& block, const uint16_t* a, const PackedMatrix& b,
                 float* to) const {
    block.for_each_tile(kernel, [&](int64_t i, int64_t rows, int64_t visible) {
      multiply_row_block(kernel, as_words(a + i * score_row(), score_row(), kernel.rows), rows,
                         even(visible) / 2, b.columns(width()), to + i * width(), width(), false);
    });
  }
  // Adds a^T b to `to` [keys, A], for a [rows, keys] f32 and b [length, A]. Packs pairs of rows of
  // `a` into words in `pairs` [kQueryRows / 2, pair_row()].
  void over_queries(const QueryBlock& block, float* a, const PackedMatrix& b, float* pairs,
                    float* to) const {
    if (block.rows % 2 != 0) {
      std::fill_n(a + block.rows * score_row(), block.keys(), 0.0F);
    }
    for (int64_t i = 0; i < block.rows; i += 2) {
      const float* row = a + i * score_row();
      pack_bf16_pairs(row, row + score_row(), block.keys(), pairs + i / 2 * pair_row());
    }
    multiply_row_block(kernel, {pairs, 1, pair_row(), kernel.rows}, block.keys(),
                       even(block.rows) / 2, b.from_word(block.first / 2), to, width(), true);
  }
  // Padded by a cache line, to avoid cache-set conflicts if the length is a large power of two.
  int64_t pair_row() const { return (length() + 15) / 16 * 16 + 16; }
};

// Sets the scores of row i for future keys to 0, up to the last key of the block.
void mask_future(const QueryBlock& block, int64_t i, float* row) {
  std::fill(row + block.first + i + 1, row + even(block.keys()), 0.0F);
}

}  // namespace

void causal_attention_forward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                   int64_t group, uint16_t* out, float* log_sum) {
  const KernelUse use(kernel);
  const BF16Products products{kernel, {in, group}};
  const AttentionGroup<uint16_t>& head_group = products.head_group;
  const int64_t length = in.length, width = head_group.width(), heads = in.heads.heads;
  const int64_t size = length * width, score_row = products.score_row();
  Workspace space(2 * size + kQueryRows * (2 * score_row + width));
  float* wide = space.take(size);
  uint16_t *query = space.take_bf16(size), *key = space.take_bf16(size);
  float *scores = space.take(kQueryRows * score_row), *sums = space.take(kQueryRows * width);
  uint16_t* shares = space.take_bf16(kQueryRows * score_row);
  PackedMatrix keys(kernel, width, length), values(kernel, length, width);
  products.rotate(head_group.key_column(), 1.0F, wide, key);
  keys.pack({key, 1, width, at::kBFloat16});
  values.pack({in.qkv + head_group.value_column(), in.heads.row(), 1, at::kBFloat16});
  for (int64_t index = 0; index < head_group.shared(); ++index) {
    const int64_t head = head_group.head(index);
    products.rotate(head * width, head_group.scale(), wide, query);
    for (int64_t first = 0; first < length; first += kQueryRows) {
      const QueryBlock block{first, std::min(kQueryRows, length - first)};
      products.scores(block, query, width, keys, scores);
      float total[kQueryRows];
      for (int64_t i = 0; i < block.rows; ++i) {
        float* row = scores + i * score_row;
        const int64_t visible = block.first + i + 1;
        const float max = row_max(row, visible);
        total[i] = exponentials_below(row, visible, max);
        log_sum[(block.first + i) * heads + head] = max + std::log(total[i]);
        mask_future(block, i, row);
        f32_to_bf16_ftz(row, even(block.keys()), shares + i * score_row);
      }
      products.over_keys(block, shares, values, sums);
      for (int64_t i = 0; i < block.rows; ++i) {
        divide_to_bf16(sums + i * width, width, total[i],
                       out + ((block.first + i) * heads + head) * width);
      }
    }
  }
}

void causal_attention_backward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                    int64_t group, const uint16_t* out, const float* log_sum,
                                    const uint16_t* grad_out, uint16_t* grad_qkv) {
  const KernelUse use(kernel);
  const BF16Products products{kernel, {in, group}};
  const AttentionGroup<uint16_t>& head_group = products.head_group;
  const int64_t length = in.length, width = head_group.width(), heads = in.heads.heads;
  const int64_t size = length * width, score_row = products.score_row(), row = in.heads.row();
  Workspace space(5 * size + kQueryRows * (3 * score_row + products.pair_row()));
  float *wide = space.take(size), *grad_query = wide;  // shared: only rotate() uses `wide`
  uint16_t *query = space.take_bf16(size), *key = space.take_bf16(size);
  float *grad_key = space.take(size), *grad_value = space.take(size);
  float *p = space.take(kQueryRows * score_row), *dp = space.take(kQueryRows * score_row);
  uint16_t* slopes = space.take_bf16(kQueryRows * score_row);
  float* pairs = space.take(kQueryRows / 2 * products.pair_row());
  PackedMatrix keys(kernel, width, length), values(kernel, width, length);
  PackedMatrix key_rows(kernel, length, width), query_rows(kernel, length, width);
  PackedMatrix grad_rows(kernel, length, width);
  products.rotate(head_group.key_column(), 1.0F, wide, key);
  keys.pack({key, 1, width, at::kBFloat16});
  key_rows.pack({key, width, 1, at::kBFloat16});
  values.pack({in.qkv + head_group.value_column(), 1, row, at::kBFloat16});
  std::fill_n(grad_key, size, 0.0F);
  std::fill_n(grad_value, size, 0.0F);
  for (int64_t index = 0; index < head_group.shared(); ++index) {
    const int64_t head = head_group.head(index), stride = heads * width;
    const uint16_t *y = out + head * width, *dy = grad_out + head * width;
    products.rotate(head * width, head_group.scale(), wide, query);
    query_rows.pack({query, width, 1, at::kBFloat16});
    grad_rows.pack({dy, stride, 1, at::kBFloat16});
    for (int64_t first = 0; first < length; first += kQueryRows) {
      const QueryBlock block{first, std::min(kQueryRows, length - first)};
      products.scores(block, query, width, keys, p);
      products.scores(block, dy, stride, values, dp);
      for (int64_t i = 0; i < block.rows; ++i) {
        const int64_t t = block.first + i;
        float *shares = p + i * score_row, *slope = dp + i * score_row;
        exponentials_below(shares, t + 1, log_sum[t * heads + head]);
        score_gradients(shares, slope, t + 1, dot_bf16(y + t * stride, dy + t * stride, width));
        mask_future(block, i, shares);
        mask_future(block, i, slope);
        f32_to_bf16_ftz(slope, even(block.keys()), slopes + i * score_row);
      }
      products.over_keys(block, slopes, key_rows, grad_query + block.first * width);
      products.over_queries(block, dp, query_rows, pairs, grad_key);
      products.over_queries(block, p, grad_rows, pairs, grad_value);
    }
    head_group.rotate_back(grad_query, head_group.scale(), grad_qkv + head * width);
  }
  head_group.rotate_back(grad_key, 1.0F, grad_qkv + head_group.key_column());
  for (int64_t t = 0; t < length; ++t) {
    f32_to_bf16(grad_value + t * width, width, grad_qkv + head_group.value_column() + t * row);
  }
}

}  // namespace moe::kernels
