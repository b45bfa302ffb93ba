#include "core/model/llama/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

#include "core/base/error.h"
#include "kernels/ops/operations.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"

namespace moe::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns theta^(-2i / A) [A / 2] f32, with the operations and the order of transformers
// (modeling_rope_utils), so that large positions agree to the last bits.
Tensor plain_frequencies(double theta, int64_t head_dim) {
  const Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat).div(static_cast<double>(head_dim));
  return at::reciprocal(at::pow(theta, exponents));
}

// Returns the base of dynamic NTK: larger than theta if `length` exceeds max_positions.
double dynamic_theta(const RopeConfig& rope, int64_t head_dim, int64_t max_positions,
                     int64_t length) {
  if (length <= max_positions) {
    return rope.theta;
  }
  const double stretch = rope.factor * length / max_positions - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, static_cast<double>(head_dim) / (head_dim - 2.0));
}

// Scales low frequencies by 1 / factor, keeps high ones, and interpolates between them.
Tensor llama3_frequencies(const RopeConfig& rope, const Tensor& frequencies) {
  const double old_length = rope.original_max_position_embeddings;
  const double low_wave = old_length / rope.low_freq_factor;
  const double high_wave = old_length / rope.high_freq_factor;
  const Tensor wave = at::reciprocal(frequencies).mul(2.0 * std::numbers::pi);
  const Tensor stretched = frequencies / rope.factor;
  const Tensor smooth = (at::reciprocal(wave) * old_length - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  const Tensor blended = (1.0 - smooth) * stretched + smooth * frequencies;
  return at::where(wave > low_wave, stretched, at::where(wave < high_wave, frequencies, blended));
}

// Returns the table of `positions` [P] of sequences of `length` positions. Only dynamic NTK depends
// on the length.
RopeTable rope_table(const Tensor& positions, const ModelConfig& config, int64_t length) {
  const Tensor frequencies =
      rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings, length);
  const Tensor angles =  // [P, A / 2]
      at::outer(positions.to(at::kFloat), frequencies.to(positions.device()));
  const Tensor both = at::cat({angles, angles}, 1);
  return {both.cos(), both.sin()};
}

// Returns the table of positions 0 .. count - 1 for sequences of up to `count` positions.
RopeTable first_positions(int64_t count, const ModelConfig& config) {
  return rope_table(at::arange(count), config, count);
}

// Returns x [B, heads, S, A] rotated by the S positions of the table.
Tensor apply_rope(const Tensor& x, const RopeTable& table) {
  const int64_t half = x.size(3) / 2;
  const Tensor rotated = at::cat({x.narrow(3, half, half).neg(), x.narrow(3, 0, half)}, 3);
  return x * table.cosine + rotated * table.sine;
}

// Returns true if one table serves all sequences of up to `max_length` positions. Dynamic NTK
// rotates longer ones by other angles.
bool has_one_table(int64_t max_length, const ModelConfig& config) {
  return config.rope.type != RopeType::kDynamic || max_length <= config.max_position_embeddings;
}

int64_t sum(std::span<const int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

Tensor concatenate(const std::vector<Tensor>& parts) {
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

// Splits the sequences of a pack into runs. The run from sequence `begin` extends to the following
// ones while can_join(begin, index). Returns the concatenated results of attend(begin, lengths,
// first token, number of tokens) of all runs.
template <typename CanJoin, typename Attend>
Tensor attend_runs(std::span<const int64_t> lengths, const CanJoin& can_join,
                   const Attend& attend) {
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (size_t begin = 0, end = 0; begin < lengths.size(); begin = end) {
    for (end = begin + 1; end < lengths.size() && can_join(begin, end);) {
      ++end;
    }
    const auto run = lengths.subspan(begin, end - begin);
    const int64_t tokens = sum(run);
    parts.push_back(attend(begin, run, first, tokens));
    first += tokens;
  }
  return concatenate(parts);
}

// Repeats every key/value head for its query heads, required by fused kernels of LibTorch:
// [B, G, S, A] -> [B, heads, S, A].
Tensor repeat_kv(const Tensor& x, int64_t heads) {
  const int64_t copies = heads / x.size(1);
  if (copies == 1) {
    return x;
  }
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), copies, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// Returns the mask [count, past + count] of `count` new queries: query i sees the `past` keys and
// the first i + 1 new ones.
Tensor causal_mask(int64_t past, int64_t count, at::Device device) {
  return at::ones({count, past + count}, at::TensorOptions(at::kBool).device(device)).tril(past);
}

// Returns the dtype of attention and of norms for activations like `x`.
at::ScalarType score_type(const Tensor& x) {
  return kernels::call<"moe::score_type", at::ScalarType(const Tensor&)>(x);
}

struct Heads {
  Tensor query, key, value;  // [B, H or G, S, A], or [T, H or G, A] of a pack
};

// Splits qkv [B * S, (H + 2 G) A] and rotates queries and keys at positions `first` and following.
Heads rotated_heads(const Tensor& qkv, int64_t batch, const ModelConfig& config, int64_t first) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t heads = config.heads, kv_heads = config.kv_heads, width = config.head_dim;
  const Tensor rows = qkv.view({batch, length, heads + 2 * kv_heads, width}).transpose(1, 2);
  const RopeTable table =
      rope_table(at::arange(first, first + length, qkv.device()), config, first + length);
  const auto type = score_type(qkv);  // after the rotation in f32
  return {apply_rope(rows.narrow(1, 0, heads), table).to(type),
          apply_rope(rows.narrow(1, heads, kv_heads), table).to(type),
          rows.narrow(1, heads + kv_heads, kv_heads).to(type)};
}

// Returns softmax(query key^T) value, [B * S, H A] in the dtype of `like`.
Tensor attend_heads(const Heads& heads, const std::optional<Tensor>& mask, bool causal,
                    const Tensor& like) {
  const int64_t count = heads.query.size(1);
  const Tensor out = at::scaled_dot_product_attention(
      heads.query, repeat_kv(heads.key, count), repeat_kv(heads.value, count), mask, 0.0, causal);
  const int64_t rows = out.size(0) * out.size(2);
  return out.transpose(1, 2).reshape({rows, count * out.size(3)}).to(like.scalar_type());
}

// Attends within sequences of equal length after the keys in `cache`, if any: [B * S, (H + 2 G) A]
// -> [B * S, H A]. Appends the keys and values to `cache` and, for each sequence, to `caches`.
Tensor attend_batch(const Tensor& qkv, int64_t batch, const ModelConfig& config, LayerCache* cache,
                    std::vector<LayerCache>* caches) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t past = cache != nullptr && cache->keys.defined() ? cache->keys.size(2) : 0;
  Heads heads = rotated_heads(qkv, batch, config, past);
  if (cache != nullptr) {
    heads.key = past > 0 ? at::cat({cache->keys, heads.key}, 2) : heads.key;
    heads.value = past > 0 ? at::cat({cache->values, heads.value}, 2) : heads.value;
    cache->keys = heads.key;
    cache->values = heads.value;
  }
  for (int64_t row = 0; caches != nullptr && row < batch; ++row) {
    caches->push_back({heads.key.narrow(0, row, 1), heads.value.narrow(0, row, 1)});
  }
  std::optional<Tensor> mask;  // for several tokens after cached ones
  if (past > 0 && length > 1) {
    mask = causal_mask(past, length, qkv.device());
  }
  return attend_heads(heads, mask, past == 0, qkv);
}

// Attends within sequences that all continue `prefix`, in one product with a mask: they are few and
// short. qkv [T, (H + 2 G) A] -> [T, H A].
Tensor attend_after_prefix(const Tensor& qkv, std::span<const int64_t> lengths,
                           const ModelConfig& config, const LayerCache& prefix) {
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
        .copy_(causal_mask(0, length, qkv.device()));
    first += length;
  }
  return attend_heads({at::cat(queries, 2), at::cat(keys, 2), at::cat(values, 2)}, mask, false,
                      qkv);
}

// Attends within the sequences of a pack on the CPU: [T, (H + 2 G) A] -> [T, H A]. Sequences share
// one call; with dynamic NTK, only adjacent sequences of equal length do.
Tensor attend_packed_cpu(const Tensor& qkv, std::span<const int64_t> lengths,
                         const ModelConfig& config) {
  const auto can_join = [&](size_t begin, size_t index) {
    return config.rope.type != RopeType::kDynamic || lengths[index] == lengths[begin];
  };
  return attend_runs(
      lengths, can_join, [&](size_t /*begin*/, auto run, int64_t first, int64_t rows) {
        const RopeTable table = first_positions(std::ranges::max(run), config);
        return kernels::causal_attention(qkv.narrow(0, first, rows), attention_heads(config),
                                         {run.begin(), run.end()}, table);
      });
}

// Normalizes every head of x [T, N A] with `weight` [A].
Tensor normed_heads(const Tensor& x, const Tensor& weight, double epsilon) {
  const int64_t width = weight.size(0);
  const Tensor rows = x.reshape({x.size(0) * (x.size(1) / width), width});  // [T * N, A]
  return kernels::rms_norm(rows.to(score_type(rows)), weight, epsilon)
      .to(x.scalar_type())
      .view(x.sizes());
}

// Returns views [T, H or G, A] of the heads of all tokens.
Heads split_heads(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t count = heads + 2 * kv_heads;
  const Tensor all = qkv.view({qkv.size(0), count, qkv.size(1) / count});
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
          all.narrow(1, heads + kv_heads, kv_heads)};
}

// Returns [T, H, A] and the inputs of the backward.
auto flash_forward(const Heads& heads, const Tensor& ends, const Tensor& key_ends,
                   int64_t max_length, int64_t max_keys) {
  return at::_flash_attention_forward(heads.query, heads.key, heads.value, ends, key_ends,
                                      max_length, max_keys, /*dropout_p=*/0, /*is_causal=*/true,
                                      /*return_debug_mask=*/false);
}

// RoPE and attention as one node, so that the kernel that rotates back writes the gradient of qkv
// once. Separate nodes would pad the gradients of three views with zeros and add them.
struct RotatedAttention : torch::autograd::Function<RotatedAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& cosine,
                        const Tensor& sine, const Tensor& position, const Tensor& ends,
                        int64_t longest, int64_t heads, int64_t kv_heads) {
    const Tensor qkv = input.contiguous();
    const int64_t width = qkv.size(1) / (heads + 2 * kv_heads);
    kernels::rope_(qkv, cosine, sine, position, heads + kv_heads, width);
    torch::autograd::impl::bump_version(qkv);  // detects saved uses
    const auto [out, log_sum, seed, offset, mask] =
        flash_forward(split_heads(qkv, heads, kv_heads), ends, ends, longest, longest);
    context->save_for_backward({qkv, out, log_sum, seed, offset, cosine, sine, position, ends});
    context->saved_data["longest"] = longest;
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    const Heads heads = split_heads(saved[0], number("heads"), number("kv_heads"));
    const Tensor& ends = saved[8];
    const int64_t longest = number("longest");
    const auto [query, key, value] = at::_flash_attention_backward(
        gradients[0], heads.query, heads.key, heads.value, saved[1], saved[2], ends, ends, longest,
        longest, /*dropout_p=*/0, /*is_causal=*/true, saved[3], saved[4]);
    variable_list result(8);
    result[0] = kernels::rope_backward(query, key, value, saved[5], saved[6], saved[7]);
    return result;
  }
};

// Returns the attention [T, H, A] of sequences with prefixes. The flash kernel aligns its causal
// mask to the last key, so the first query of a sequence sees its whole prefix.
Tensor flash_with_prefixes(const Tensor& qkv, const PackTables& tables, int64_t heads,
                           int64_t kv_heads, int64_t width) {
  kernels::rope_(qkv, tables.cosine, tables.sine, tables.position, heads + kv_heads, width);
  const Heads own = split_heads(qkv, heads, kv_heads);
  const Tensor shared = qkv.view({qkv.size(0), heads + 2 * kv_heads, width})
                            .narrow(1, heads, 2 * kv_heads)
                            .index_select(0, tables.key_rows);
  const Heads all{own.query, shared.narrow(1, 0, kv_heads), shared.narrow(1, kv_heads, kv_heads)};
  return std::get<0>(
      flash_forward(all, tables.ends, tables.key_ends, tables.max_length, tables.max_keys));
}

// Attends within sequences; adjacent ones of equal length are one batch. Returns [T, H A].
Tensor attend_by_length(const Heads& heads, const std::vector<int64_t>& lengths) {
  const auto can_join = [&](size_t begin, size_t index) {
    return lengths[index] == lengths[begin];
  };
  return attend_runs(
      lengths, can_join, [&](size_t /*begin*/, auto run, int64_t first, int64_t rows) {
        const auto batched = [&](const Tensor& packed) {  // -> [batch, H or G, length, A]
          return packed.narrow(0, first, rows)
              .reshape({std::ssize(run), run[0], packed.size(1), packed.size(2)})
              .transpose(1, 2);
        };
        return attend_heads({batched(heads.query), batched(heads.key), batched(heads.value)}, {},
                            /*causal=*/true, heads.query);
      });
}

// Returns the attention of a pack on a GPU, [T, H A], of qkv [T, (H + 2 G) A] f32 or bf16, which
// may be rotated in place. Differentiable; shared prefixes require fits_flash() and no gradient.
Tensor packed_attention(Tensor&& qkv, const std::vector<int64_t>& lengths, const PackTables& tables,
                        const ModelConfig& config) {
  RECORD_USER_SCOPE("attention");
  const int64_t heads = config.heads, kv_heads = config.kv_heads, tokens = qkv.size(0);
  Tensor out;  // [T, H, A] or [T, H A]
  if (tables.key_rows.defined()) {
    MOE_CHECK(fits_flash(qkv.scalar_type(), config) && !at::GradMode::is_enabled());
    out = flash_with_prefixes(qkv.contiguous(), tables, heads, kv_heads, config.head_dim);
  } else if (fits_flash(qkv.scalar_type(), config)) {
    out = RotatedAttention::apply(qkv, tables.cosine, tables.sine, tables.position, tables.ends,
                                  tables.max_length, heads, kv_heads);
  } else {
    const Tensor rotated = kernels::rope(qkv, tables.cosine, tables.sine, tables.position,
                                         heads + kv_heads, config.head_dim);
    out = attend_by_length(split_heads(rotated, heads, kv_heads), lengths);
  }
  return out.reshape({tokens, heads * config.head_dim});
}

}  // namespace

Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_position_embeddings,
                        int64_t sequence_length) {
  const bool is_dynamic = rope.type == RopeType::kDynamic;
  const double theta = is_dynamic
                           ? dynamic_theta(rope, head_dim, max_position_embeddings, sequence_length)
                           : rope.theta;
  const Tensor frequencies = plain_frequencies(theta, head_dim);
  if (rope.type == RopeType::kLinear) {
    return frequencies / rope.factor;
  }
  return rope.type == RopeType::kLlama3 ? llama3_frequencies(rope, frequencies) : frequencies;
}

RopeTable rotations_at(const std::vector<int64_t>& lengths, const std::vector<int64_t>& starts,
                       const ModelConfig& config) {
  std::vector<int64_t> positions;
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    for (int64_t i = 0; i < lengths[sequence]; ++i) {
      positions.push_back(starts[sequence] + i);
    }
  }
  // Generation ends at max_position_embeddings, below which dynamic NTK has one base.
  return rope_table(at::tensor(positions, at::kLong), config, /*length=*/1);
}

bool fits_flash(at::ScalarType type, const ModelConfig& config) {
  return type == at::kBFloat16 && config.head_dim % 8 == 0 && config.head_dim <= 256;
}

std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& prefix_index,
                                      const ModelConfig& config, at::Device device) {
  const bool shares = !prefix_index.empty();
  std::vector<int32_t> ends{0}, key_ends{0}, position;
  std::vector<int64_t> key_rows;
  int64_t max_length = 0, max_keys = 0;
  const auto append_rows = [&](size_t sequence) {
    for (int64_t row = ends[sequence]; row < ends[sequence] + lengths[sequence]; ++row) {
      key_rows.push_back(row);
    }
  };
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const int64_t prefix = shares ? prefix_index[sequence] : -1, own = lengths[sequence];
    const int64_t before = prefix < 0 ? 0 : lengths[prefix];
    ends.push_back(ends.back() + static_cast<int32_t>(own));
    for (int64_t i = 0; i < own; ++i) {
      position.push_back(static_cast<int32_t>(before + i));
    }
    if (prefix >= 0) {
      append_rows(prefix);
    }
    if (shares) {
      append_rows(sequence);
      key_ends.push_back(static_cast<int32_t>(key_rows.size()));
    }
    max_length = std::max(max_length, own);
    max_keys = std::max(max_keys, before + own);
  }
  if (max_length == 0 || !has_one_table(max_keys, config)) {
    return std::nullopt;
  }
  const RopeTable table = first_positions(max_keys, config);
  const auto half = [&](const Tensor& both) {
    return both.narrow(1, 0, config.head_dim / 2).contiguous().to(device);
  };
  PackTables tables{at::tensor(ends, at::kInt).to(device),
                    at::tensor(position, at::kInt).to(device), half(table.cosine), half(table.sine),
                    max_length};
  tables.max_keys = max_keys;
  if (shares) {
    tables.key_rows = at::tensor(key_rows, at::kLong).to(device);
    tables.key_ends = at::tensor(key_ends, at::kInt).to(device);
  }
  return tables;
}

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

Tensor self_attention(const Tensor& x, const AttentionWeights& weights, const ModelConfig& config,
                      const Sequences& sequences) {
  const std::span<const int64_t> lengths = sequences.lengths;
  const bool has_prefixes = !sequences.prefix_index.empty();
  MOE_CHECK(!has_prefixes || sequences.prefix_index.size() == lengths.size());
  MOE_CHECK(sum(lengths) == x.size(0), "lengths sum to {}, tokens are {}", sum(lengths), x.size(0));
  Tensor qkv = project_qkv(x, weights, config);
  if (!has_prefixes && !lengths.empty() && kernels::has_causal_attention(qkv)) {
    return attend_packed_cpu(qkv, lengths, config);
  }
  const int64_t positions = kernels::max_positions(sequences.lengths, sequences.prefix_index);
  if (has_prefixes && kernels::has_causal_attention(qkv) && !at::GradMode::is_enabled() &&
      has_one_table(positions, config)) {
    const RopeTable table = first_positions(positions, config);
    return kernels::shared_prefix_attention(qkv, attention_heads(config), sequences.lengths,
                                            sequences.prefix_index, table);
  }
  if (sequences.tables != nullptr) {
    return packed_attention(std::move(qkv), sequences.lengths, *sequences.tables, config);
  }
  std::vector<LayerCache> prefix_caches;  // one per sequence so far, if some are prefixes
  // One product serves adjacent sequences of equal length without prefix, or with the same prefix.
  const auto can_join = [&](size_t begin, size_t index) {
    const int64_t prefix = sequences.prefix(begin);
    return sequences.prefix(index) == prefix && (prefix >= 0 || lengths[index] == lengths[begin]);
  };
  return attend_runs(lengths, can_join, [&](size_t begin, auto run, int64_t first, int64_t rows) {
    const Tensor part = qkv.narrow(0, first, rows);
    const int64_t prefix = sequences.prefix(begin);
    if (prefix < 0) {
      return attend_batch(part, std::ssize(run), config, nullptr,
                          has_prefixes ? &prefix_caches : nullptr);
    }
    MOE_CHECK(prefix < static_cast<int64_t>(begin) && prefix_caches[prefix].keys.defined());
    const Tensor out = attend_after_prefix(part, run, config, prefix_caches[prefix]);
    prefix_caches.resize(begin + run.size());
    return out;
  });
}

Tensor attend_with_kv_cache(const Tensor& x, const AttentionWeights& weights,
                            const ModelConfig& config, const std::vector<int64_t>& lengths,
                            const std::vector<KvCache*>& caches, int64_t index,
                            const RopeTable& rotations) {
  const Tensor qkv = project_qkv(x, weights, config);
  if (!kernels::has_causal_attention(qkv)) {
    std::vector<Tensor> parts;
    int64_t first = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      parts.push_back(attend_batch(qkv.narrow(0, first, lengths[i]), /*batch=*/1, config,
                                   &caches[i]->gpu_layer(index), nullptr));
      first += lengths[i];
    }
    return concatenate(parts);
  }
  std::vector<kernels::KvCacheView> views;
  for (const KvCache* cache : caches) {
    views.push_back(cache->cpu_layer(index));
  }
  return kernels::cached_attention(qkv, attention_heads(config), lengths, views, rotations);
}

KvCache::KvCache(const ModelConfig& config, const KvCacheOptions& options)
    : heads_(attention_heads(config)), capacity_(options.capacity), prefix_(options.prefix) {
  if (!kernels::has_kernel<"moe::causal_attention">(options.device)) {  // uses no blocks
    MOE_CHECK(prefix_ == nullptr);
    gpu_.resize(config.layers);
    return;
  }
  MOE_CHECK(prefix_ == nullptr || prefix_->prefix_ == nullptr);
  const int64_t layer_numel = kernels::kv_numel(heads_, capacity_);
  const at::Tensor all =
      options.memory.defined() ? options.memory : at::empty({numel(config, capacity_)}, at::kFloat);
  MOE_CHECK(all.numel() == config.layers * layer_numel);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    cpu_.push_back(
        kernels::view_kv_block(all.narrow(0, layer * layer_numel, layer_numel), heads_, capacity_));
  }
}

int64_t KvCache::numel(const ModelConfig& config, int64_t capacity) {
  return config.layers * kernels::kv_numel(attention_heads(config), capacity);
}

void KvCache::reserve(int64_t tokens) {
  if (cpu_.empty() || own_length_ + tokens <= capacity_) {
    return;
  }
  capacity_ = std::max(own_length_ + tokens, 2 * capacity_);
  for (kernels::KvBlock& block : cpu_) {
    block = kernels::grow_kv_block(block, heads_, capacity_);
  }
}

int64_t KvCache::length() const {
  return own_length_ + (prefix_ == nullptr ? 0 : prefix_->own_length_);
}

kernels::KvCacheView KvCache::cpu_layer(int64_t index) const {
  const auto number = static_cast<size_t>(index);
  kernels::KvCacheView view{cpu_.at(number), own_length_};
  if (prefix_ != nullptr) {
    view.prefix = prefix_->cpu_.at(number);
    view.prefix_length = prefix_->own_length_;
  }
  return view;
}

}  // namespace moe::model
