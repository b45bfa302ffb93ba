// Sequences of equal length that follow each other are one batch of scaled_dot_product_attention; a
// ragged pack is a few such batches. Nothing is padded, so no pair of tokens is computed that a
// mask would throw away.

#include "core/model/attention.h"

#include <cmath>

#include "core/base/error.h"
#include "core/model/rope.h"

namespace moe::model {

using torch::Tensor;

namespace {

// Every query head's own key/value head: [B, G, S, A] -> [B, H, S, A]. LibTorch's fused CPU kernel
// wants equal heads.
Tensor spread_heads(const Tensor& x, int64_t heads) {
  const int64_t copies = heads / x.size(1);
  if (copies == 1) {
    return x;
  }
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), copies, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// New query i of `count` may see the `past` keys and its own first i + 1.
Tensor mask_after(int64_t past, int64_t count, at::Device device) {
  return at::ones({count, past + count}, at::TensorOptions(at::kBool).device(device)).tril(past);
}

// The type of the attention product for activations like `x`: bf16 where the device has fast
// products in it, on the CPU f32.
at::ScalarType score_type(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && !x.is_cuda() ? at::kFloat : x.scalar_type();
}

// One batch of equal sequences: qkv [B * S, (H + 2G) A] -> [B * S, H A].
Tensor attend(const Tensor& qkv, int64_t batch, const ModelConfig& config, LayerCache* cache) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t heads = config.heads, kv_heads = config.kv_heads, width = config.head_dim;
  const int64_t past = cache != nullptr && cache->keys.defined() ? cache->keys.size(2) : 0;

  const Tensor rows = qkv.view({batch, length, heads + 2 * kv_heads, width}).transpose(1, 2);
  const RopeTable table =
      rope_table(rope_frequencies(config.rope, width, config.max_position_embeddings, past + length)
                     .to(qkv.device()),
                 past,
                 length);
  const auto type = score_type(qkv);  // the table is f32, so rotating is never done in bf16
  const Tensor query = apply_rope(rows.narrow(1, 0, heads), table).to(type);
  Tensor key = apply_rope(rows.narrow(1, heads, kv_heads), table).to(type);
  Tensor value = rows.narrow(1, heads + kv_heads, kv_heads).to(type);
  if (cache != nullptr) {
    key = past > 0 ? at::cat({cache->keys, key}, 2) : key;
    value = past > 0 ? at::cat({cache->values, value}, 2) : value;
    cache->keys = key;
    cache->values = value;
  }
  // One new token sees everything; a first pass is plainly causal; several after a past need the
  // mask spelt out.
  const bool causal = past == 0;
  std::optional<Tensor> mask;
  if (past > 0 && length > 1) {
    mask = mask_after(past, length, qkv.device());
  }
  const Tensor out = at::scaled_dot_product_attention(
      query, spread_heads(key, heads), spread_heads(value, heads), mask, 0.0, causal);
  return out.transpose(1, 2).reshape({batch * length, heads * width}).to(qkv.scalar_type());
}

}  // namespace

Tensor attention_forward(const Tensor& x,
                         const AttentionWeights& weights,
                         const ModelConfig& config,
                         const std::vector<int64_t>& lengths,
                         LayerCache* cache) {
  const Tensor qkv = adapted_linear(x, weights.qkv, weights.bias, weights.qkv_adapter);
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (size_t begin = 0; begin < lengths.size();) {
    size_t end = begin + 1;
    while (end < lengths.size() && lengths[end] == lengths[begin]) {
      ++end;
    }
    const int64_t batch = static_cast<int64_t>(end - begin), rows = batch * lengths[begin];
    parts.push_back(attend(qkv.narrow(0, first, rows), batch, config, cache));
    first += rows;
    begin = end;
  }
  MOE_CHECK(first == x.size(0), "lengths sum to {}, tokens are {}", first, x.size(0));
  MOE_CHECK(cache == nullptr || parts.size() == 1, "a cache needs sequences of one length");
  return adapted_linear(parts.size() == 1 ? parts.front() : at::cat(parts, 0),
                        weights.output,
                        {},
                        weights.output_adapter);
}

}  // namespace moe::model
