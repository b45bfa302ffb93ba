// A pack of sequences on the CPU is one call of our own kernel, on a GPU gpu_attention.h where none
// continues another. Elsewhere, and with a past, sequences of equal length that follow each other
// are one batch of scaled_dot_product_attention; a ragged pack is a few such batches. Nothing is
// padded, so no pair of tokens is computed that a mask would throw away.

#include "core/model/llama/attention.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/base/error.h"
#include "core/model/llama/rope.h"
#include "kernels/ops/causal_attention.h"
#include "kernels/ops/rms_norm.h"

namespace moe::model {

using at::Tensor;

Tensor spread_heads(const Tensor& x, int64_t heads) {
  const int64_t copies = heads / x.size(1);
  if (copies == 1) {
    return x;
  }
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), copies, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

namespace {

// New query i of `count` may see the `past` keys and its own first i + 1.
Tensor mask_after(int64_t past, int64_t count, at::Device device) {
  return at::ones({count, past + count}, at::TensorOptions(at::kBool).device(device)).tril(past);
}

// The type of the attention product, and of norms, for activations like `x`: bf16 where the device
// has fast products in it, on the CPU f32.
at::ScalarType score_type(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && !x.is_cuda() ? at::kFloat : x.scalar_type();
}

// Queries, keys and values at positions `first`.. of one batch of equal sequences, rotated.
struct Heads {
  Tensor query, key, value;  // [B, H or G, S, A]
};

Heads rotated_heads(const Tensor& qkv, int64_t batch, const ModelConfig& config, int64_t first) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t heads = config.heads, kv_heads = config.kv_heads, width = config.head_dim;
  const Tensor rows = qkv.view({batch, length, heads + 2 * kv_heads, width}).transpose(1, 2);
  const RopeTable table = rope_table(
      rope_frequencies(config.rope, width, config.max_position_embeddings, first + length)
          .to(qkv.device()),
      first, length);
  const auto type = score_type(qkv);  // the table is f32, so rotating is never done in bf16
  return {apply_rope(rows.narrow(1, 0, heads), table).to(type),
          apply_rope(rows.narrow(1, heads, kv_heads), table).to(type),
          rows.narrow(1, heads + kv_heads, kv_heads).to(type)};
}

// softmax(query key^T) value, [B * S, H A] in the type of `like`.
Tensor attended(const Heads& heads, const std::optional<Tensor>& mask, bool causal,
                const Tensor& like) {
  const int64_t count = heads.query.size(1);
  const Tensor out =
      at::scaled_dot_product_attention(heads.query, spread_heads(heads.key, count),
                                       spread_heads(heads.value, count), mask, 0.0, causal);
  const int64_t rows = out.size(0) * out.size(2);
  return out.transpose(1, 2).reshape({rows, count * out.size(3)}).to(like.scalar_type());
}

// One batch of equal sequences: qkv [B * S, (H + 2G) A] -> [B * S, H A]. The keys and values
// of each are appended to `seen`.
Tensor attend(const Tensor& qkv, int64_t batch, const ModelConfig& config, LayerCache* cache,
              std::vector<LayerCache>* seen) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t past = cache != nullptr && cache->keys.defined() ? cache->keys.size(2) : 0;
  Heads heads = rotated_heads(qkv, batch, config, past);
  if (cache != nullptr) {
    heads.key = past > 0 ? at::cat({cache->keys, heads.key}, 2) : heads.key;
    heads.value = past > 0 ? at::cat({cache->values, heads.value}, 2) : heads.value;
    cache->keys = heads.key;
    cache->values = heads.value;
  }
  for (int64_t row = 0; seen != nullptr && row < batch; ++row) {
    seen->push_back({heads.key.narrow(0, row, 1), heads.value.narrow(0, row, 1)});
  }
  // One new token sees everything; a first pass is plainly causal; several after a past need the
  // mask spelt out.
  std::optional<Tensor> mask;
  if (past > 0 && length > 1) {
    mask = mask_after(past, length, qkv.device());
  }
  return attended(heads, mask, past == 0, qkv);
}

// Sequences that all continue `prefix` and do not see each other, their qkv rows one after the
// other: -> [rows, H A]. They are few and short: one product under a mask.
Tensor attend_after(const Tensor& qkv, std::span<const int64_t> lengths, const ModelConfig& config,
                    const LayerCache& prefix) {
  const int64_t past = prefix.keys.size(2), rows = qkv.size(0);
  Tensor mask = at::zeros({rows, past + rows}, at::TensorOptions(at::kBool).device(qkv.device()));
  mask.narrow(1, 0, past).fill_(true);
  std::vector<Tensor> queries, keys{prefix.keys}, values{prefix.values};
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const Heads heads = rotated_heads(qkv.narrow(0, first, length), 1, config, past);
    queries.push_back(heads.query);
    keys.push_back(heads.key);
    values.push_back(heads.value);
    mask.narrow(0, first, length)
        .narrow(1, past + first, length)
        .copy_(mask_after(0, length, qkv.device()));
    first += length;
  }
  return attended({at::cat(queries, 2), at::cat(keys, 2), at::cat(values, 2)}, mask, false, qkv);
}

RopeTable table_up_to(int64_t longest, const ModelConfig& config) {
  return rope_table(
      rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings, longest), 0,
      longest);
}

// The most positions of a sequence with what it continues.
int64_t longest_of(const Sequences& sequences) {
  int64_t longest = 0;
  for (size_t index = 0; index < sequences.lengths.size(); ++index) {
    const int64_t prefix = sequences.prefix_of(index);
    const int64_t past = prefix < 0 ? 0 : sequences.lengths[static_cast<size_t>(prefix)];
    longest = std::max(longest, past + sequences.lengths[index]);
  }
  return longest;
}

// Whether one table of rotations serves all sequences: dynamic NTK rotates those that are longer
// than the window by angles of their own.
bool has_one_table(const Sequences& sequences, const ModelConfig& config) {
  return config.rope.type != RopeType::kDynamic ||
         longest_of(sequences) <= config.max_position_embeddings;
}

// The same of a pack in which some sequences continue others.
Tensor attend_shared(const Tensor& qkv, const Sequences& sequences, const ModelConfig& config) {
  const RopeTable table = table_up_to(longest_of(sequences), config);
  return kernels::shared_prefix_attention(qkv, {config.heads, config.kv_heads, config.head_dim},
                                          sequences.lengths, sequences.continues,
                                          {table.cosine, table.sine});
}

// All of a pack whose sequences see themselves alone, on the CPU: [T, (H + 2G) A] -> [T, H A].
// Sequences are taken together where one table of rotations serves them: dynamic NTK rotates
// longer ones by other angles.
Tensor attend_packed(const Tensor& qkv, std::span<const int64_t> lengths,
                     const ModelConfig& config) {
  const bool is_dynamic = config.rope.type == RopeType::kDynamic;
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (size_t begin = 0; begin < lengths.size();) {
    size_t end = is_dynamic ? begin + 1 : lengths.size();
    while (end < lengths.size() && lengths[end] == lengths[begin]) {
      ++end;
    }
    const std::vector<int64_t> run(lengths.begin() + static_cast<int64_t>(begin),
                                   lengths.begin() + static_cast<int64_t>(end));
    const int64_t rows = std::accumulate(run.begin(), run.end(), int64_t{0});
    const int64_t longest = *std::max_element(run.begin(), run.end());
    const RopeTable table = table_up_to(longest, config);
    parts.push_back(kernels::causal_attention(qkv.narrow(0, first, rows),
                                              {config.heads, config.kv_heads, config.head_dim}, run,
                                              {table.cosine, table.sine}));
    first += rows;
    begin = end;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

// Sequences begin..end-1 that one product can serve: equal ones that continue none, or all that
// follow each other and continue the same one.
size_t end_of_run(const Sequences& sequences, size_t begin) {
  size_t end = begin + 1;
  const int64_t prefix = sequences.prefix_of(begin);
  while (end < sequences.lengths.size() && sequences.prefix_of(end) == prefix &&
         (prefix >= 0 || sequences.lengths[end] == sequences.lengths[begin])) {
    ++end;
  }
  return end;
}

// Every head of x [T, N A] normed by itself under `weight` [A]. A GPU's kernel computes in f32 what
// it reads in bf16; the CPU's takes f32 alone.
Tensor normed_heads(const Tensor& x, const Tensor& weight, double epsilon) {
  const int64_t width = weight.size(0);
  const Tensor rows = x.reshape({x.size(0) * (x.size(1) / width), width});  // [T * N, A]
  return kernels::rms_norm(rows.to(score_type(rows)), weight, epsilon)
      .to(x.scalar_type())
      .view(x.sizes());
}

}  // namespace

Tensor project_qkv(const Tensor& x, const AttentionWeights& weights, const ModelConfig& config) {
  const Tensor qkv = adapted_linear(x, weights.qkv, weights.bias, weights.qkv_adapter);
  if (!weights.query_norm.defined()) {
    return qkv;
  }
  const int64_t queries = config.heads * config.head_dim, keys = config.kv_heads * config.head_dim;
  const auto parts = qkv.split_with_sizes({queries, keys, keys}, 1);
  return at::cat({normed_heads(parts[0], weights.query_norm, config.rms_norm_eps),
                  normed_heads(parts[1], weights.key_norm, config.rms_norm_eps), parts[2]},
                 1);
}

Tensor attended_tokens(const Tensor& x, const AttentionWeights& weights, const ModelConfig& config,
                       const Sequences& sequences) {
  const std::span<const int64_t> lengths = sequences.lengths;
  const bool shares = !sequences.continues.empty();
  MOE_CHECK(!shares || sequences.continues.size() == lengths.size());
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  MOE_CHECK(tokens == x.size(0), "lengths sum to {}, tokens are {}", tokens, x.size(0));
  Tensor qkv = project_qkv(x, weights, config);
  if (!shares && !lengths.empty() && kernels::has_causal_attention(qkv)) {
    return attend_packed(qkv, lengths, config);
  }
  if (shares && kernels::has_causal_attention(qkv) && !at::GradMode::is_enabled() &&
      has_one_table(sequences, config)) {
    return attend_shared(qkv, sequences, config);
  }
  if (sequences.tables != nullptr) {
    return packed_attention(std::move(qkv), sequences.lengths, *sequences.tables, config);
  }
  std::vector<Tensor> parts;
  std::vector<LayerCache> seen;  // one for each sequence so far, where some continue others
  int64_t first = 0;
  for (size_t begin = 0; begin < lengths.size();) {
    const size_t end = end_of_run(sequences, begin), count = end - begin;
    const auto run = lengths.subspan(begin, count);
    const int64_t rows = std::accumulate(run.begin(), run.end(), int64_t{0});
    const Tensor part = qkv.narrow(0, first, rows);
    if (const int64_t prefix = sequences.prefix_of(begin); prefix < 0) {
      parts.push_back(
          attend(part, static_cast<int64_t>(count), config, nullptr, shares ? &seen : nullptr));
    } else {
      MOE_CHECK(prefix < static_cast<int64_t>(begin) && seen[prefix].keys.defined());
      parts.push_back(attend_after(part, run, config, seen[prefix]));
      seen.resize(end);
    }
    first += rows;
    begin = end;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

Tensor attended_tokens(const Tensor& x, const AttentionWeights& weights, const ModelConfig& config,
                       const std::vector<int64_t>& lengths, const std::vector<KvCache*>& caches,
                       int64_t index, const RopeTable& rotations) {
  const Tensor qkv = project_qkv(x, weights, config);
  if (!kernels::has_causal_attention(qkv)) {
    std::vector<Tensor> parts;
    int64_t first = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      parts.push_back(attend(qkv.narrow(0, first, lengths[i]), /*batch=*/1, config,
                             &caches[i]->gpu_layer(index), nullptr));
      first += lengths[i];
    }
    return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
  }
  std::vector<kernels::KeptSequence> kept;
  for (const KvCache* cache : caches) {
    kept.push_back(cache->cpu_layer(index));
  }
  return kernels::cached_attention(qkv, {config.heads, config.kv_heads, config.head_dim}, lengths,
                                   kept, {rotations.cosine, rotations.sine});
}

RopeTable rotations_at(const std::vector<int64_t>& lengths, const std::vector<int64_t>& starts,
                       const ModelConfig& config) {
  std::vector<int64_t> positions;
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    for (int64_t i = 0; i < lengths[sequence]; ++i) {
      positions.push_back(starts[sequence] + i);
    }
  }
  // Nothing is generated past the window, so dynamic NTK is at its base.
  const Tensor frequencies =
      rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings, /*length=*/1);
  return rope_table(frequencies, positions);
}

}  // namespace moe::model
