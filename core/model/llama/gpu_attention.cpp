#include "core/model/llama/gpu_attention.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/model/llama/attention.h"
#include "core/model/llama/rope.h"
#include "kernels/ops/rope.h"

namespace moe::model {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Query, key and value heads of all tokens, [T, H or G, A] views.
struct PackHeads {
  Tensor query, key, value;
};

PackHeads heads_of(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t count = heads + 2 * kv_heads;
  const Tensor all = qkv.view({qkv.size(0), count, qkv.size(1) / count});
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
          all.narrow(1, heads + kv_heads, kv_heads)};
}

struct Attended {
  Tensor out, log_sum, seed, offset;  // [T, H, A], and what backward is given again
};

Attended attend_forward(const PackHeads& heads, const Tensor& ends, int64_t longest) {
  constexpr double kNoDropout = 0;
  const auto results = at::_flash_attention_forward(
      heads.query, heads.key, heads.value, ends, ends, longest, longest, kNoDropout,
      /*is_causal=*/true, /*return_debug_mask=*/false);
  return {std::get<0>(results), std::get<1>(results), std::get<2>(results), std::get<3>(results)};
}

// Returns the gradients of queries, keys and values.
PackHeads attend_backward(const Tensor& grad, const PackHeads& heads, const Attended& attended,
                          const Tensor& ends, int64_t longest) {
  constexpr double kNoDropout = 0;
  const auto [query, key, value] = at::_flash_attention_backward(
      grad, heads.query, heads.key, heads.value, attended.out, attended.log_sum, ends, ends,
      longest, longest, kNoDropout, /*is_causal=*/true, attended.seed, attended.offset);
  return {query, key, value};
}

// RoPE and attention as one node: its gradient of qkv is written once, by the kernel that rotates
// back. Three views of a rotated qkv would each be given a gradient of the whole, zeros around it,
// and these would be added up.
struct RotatedAttention : torch::autograd::Function<RotatedAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& given, const Tensor& cosine,
                        const Tensor& sine, const Tensor& position, const Tensor& ends,
                        int64_t longest, int64_t heads, int64_t kv_heads) {
    const Tensor qkv = given.contiguous();
    const int64_t width = qkv.size(1) / (heads + 2 * kv_heads);
    kernels::rope_(qkv, cosine, sine, position, heads + kv_heads, width);
    torch::autograd::impl::bump_version(qkv);  // who kept it for a backward is told
    const auto [out, log_sum, seed, offset] =
        attend_forward(heads_of(qkv, heads, kv_heads), ends, longest);
    context->save_for_backward({qkv, out, log_sum, seed, offset, cosine, sine, position, ends});
    context->saved_data["longest"] = longest;
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    const PackHeads heads = heads_of(saved[0], number("heads"), number("kv_heads"));
    const auto [query, key, value] =
        attend_backward(gradients[0], heads, {saved[1], saved[2], saved[3], saved[4]},
                        /*ends=*/saved[8], number("longest"));
    variable_list result(8);
    result[0] = kernels::rope_backward(query, key, value, saved[5], saved[6], saved[7]);
    return result;
  }
};

// Returns the attention [T, H, A] of sequences that see those they continue. The flash kernel
// aligns its causal mask to the last key: the first query of a sequence sees all of the sequence
// that it continues.
Tensor attend_with_prefixes(const Tensor& qkv, const PackTables& tables, int64_t heads,
                            int64_t kv_heads, int64_t width) {
  kernels::rope_(qkv, tables.cosine, tables.sine, tables.position, heads + kv_heads, width);
  const Tensor all = qkv.view({qkv.size(0), heads + 2 * kv_heads, width});
  const Tensor seen = all.narrow(1, heads, 2 * kv_heads).index_select(0, tables.key_rows);
  return std::get<0>(at::_flash_attention_forward(
      all.narrow(1, 0, heads), seen.narrow(1, 0, kv_heads), seen.narrow(1, kv_heads, kv_heads),
      tables.ends, tables.key_ends, tables.longest, tables.longest_keys, /*dropout_p=*/0,
      /*is_causal=*/true, /*return_debug_mask=*/false));
}

// Sequences of equal length that follow each other are one batch. -> [T, H, A].
Tensor by_lengths(const PackHeads& heads, const std::vector<int64_t>& lengths) {
  const int64_t count = heads.query.size(1);
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (size_t begin = 0, end = 0; begin < lengths.size(); begin = end) {
    while (end < lengths.size() && lengths[end] == lengths[begin]) {
      ++end;
    }
    const auto batch = static_cast<int64_t>(end - begin);
    const int64_t length = lengths[begin];
    const auto rows = [&](const Tensor& packed) {  // -> [batch, H, length, A]
      const Tensor part = packed.narrow(0, first, batch * length);
      return spread_heads(
          part.reshape({batch, length, packed.size(1), packed.size(2)}).transpose(1, 2), count);
    };
    const Tensor out = at::scaled_dot_product_attention(
        rows(heads.query), rows(heads.key), rows(heads.value), {}, 0.0, /*is_causal=*/true);
    parts.push_back(out.transpose(1, 2).reshape({batch * length, count, out.size(3)}));
    first += batch * length;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

}  // namespace

bool fits_flash(at::ScalarType type, const ModelConfig& config) {
  return type == at::kBFloat16 && config.head_dim % 8 == 0 && config.head_dim <= 256;
}

std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& continues,
                                      const ModelConfig& config, at::Device device) {
  const bool shares = !continues.empty();
  std::vector<int32_t> ends{0}, key_ends{0}, position;
  std::vector<int64_t> key_rows;
  int64_t longest = 0, longest_keys = 0;
  const auto append_rows = [&](size_t sequence) {
    for (int64_t row = ends[sequence]; row < ends[sequence] + lengths[sequence]; ++row) {
      key_rows.push_back(row);
    }
  };
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    const int64_t prefix = shares ? continues[sequence] : -1, own = lengths[sequence];
    const int64_t before = prefix < 0 ? 0 : lengths[static_cast<size_t>(prefix)];
    ends.push_back(ends.back() + static_cast<int32_t>(own));
    for (int64_t i = 0; i < own; ++i) {
      position.push_back(static_cast<int32_t>(before + i));
    }
    if (prefix >= 0) {
      append_rows(static_cast<size_t>(prefix));
    }
    if (shares) {
      append_rows(sequence);
      key_ends.push_back(static_cast<int32_t>(key_rows.size()));
    }
    longest = std::max(longest, own);
    longest_keys = std::max(longest_keys, before + own);
  }
  if (longest == 0 ||
      (config.rope.type == RopeType::kDynamic && longest_keys > config.max_position_embeddings)) {
    return std::nullopt;
  }
  const RopeTable table = rope_table(
      rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings, longest_keys),
      0, longest_keys);
  const auto half = [&](const Tensor& both) {
    return both.narrow(1, 0, config.head_dim / 2).contiguous().to(device);
  };
  PackTables tables{at::tensor(ends, at::kInt).to(device),
                    at::tensor(position, at::kInt).to(device), half(table.cosine), half(table.sine),
                    longest};
  tables.longest_keys = longest_keys;
  if (shares) {
    tables.key_rows = at::tensor(key_rows, at::kLong).to(device);
    tables.key_ends = at::tensor(key_ends, at::kInt).to(device);
  }
  return tables;
}

Tensor packed_attention(Tensor&& qkv, const std::vector<int64_t>& lengths, const PackTables& tables,
                        const ModelConfig& config) {
  RECORD_USER_SCOPE("attention");
  const int64_t heads = config.heads, kv_heads = config.kv_heads, tokens = qkv.size(0);
  Tensor out;  // [T, H, A]
  if (tables.key_rows.defined()) {
    MOE_CHECK(fits_flash(qkv.scalar_type(), config) && !at::GradMode::is_enabled());
    out = attend_with_prefixes(qkv.contiguous(), tables, heads, kv_heads, config.head_dim);
  } else if (fits_flash(qkv.scalar_type(), config)) {
    out = RotatedAttention::apply(qkv, tables.cosine, tables.sine, tables.position, tables.ends,
                                  tables.longest, heads, kv_heads);
  } else {
    const Tensor rotated = kernels::rope(qkv, tables.cosine, tables.sine, tables.position,
                                         heads + kv_heads, config.head_dim);
    out = by_lengths(heads_of(rotated, heads, kv_heads), lengths);
  }
  return out.reshape({tokens, heads * config.head_dim});
}

}  // namespace moe::model
