#include "core/model/llama/gpu_attention.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>

#include "core/model/llama/attention.h"
#include "core/model/llama/rope.h"
#include "kernels/ops/rope.h"

namespace moe::model {

using at::Tensor;

namespace {

// Query, key and value heads of all tokens, [T, H or G, A] views.
struct PackHeads {
  Tensor query, key, value;
};

PackHeads rotated(const Tensor& qkv, const PackTables& tables, const ModelConfig& config) {
  const int64_t heads = config.heads, kv_heads = config.kv_heads, width = config.head_dim;
  const Tensor all =
      kernels::rope(qkv, tables.cosine, tables.sine, tables.position, heads + kv_heads, width)
          .view({qkv.size(0), heads + 2 * kv_heads, width});
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
          all.narrow(1, heads + kv_heads, kv_heads)};
}

// What the flash kernel takes: 16 bits, and heads of whole 16 bytes up to 256 wide.
bool fits_flash(const Tensor& qkv, const ModelConfig& config) {
  return qkv.scalar_type() == at::kBFloat16 && config.head_dim % 8 == 0 && config.head_dim <= 256;
}

Tensor by_flash(const PackHeads& heads, const PackTables& tables) {
  return std::get<0>(at::_flash_attention_forward(heads.query, heads.key, heads.value, tables.ends,
                                                  tables.ends, tables.longest, tables.longest,
                                                  /*dropout_p=*/0.0,
                                                  /*is_causal=*/true,
                                                  /*return_debug_mask=*/false));
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

std::optional<PackTables> pack_tables(const std::vector<int64_t>& lengths,
                                      const ModelConfig& config, at::Device device) {
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0 ||
      (config.rope.type == RopeType::kDynamic && longest > config.max_position_embeddings)) {
    return std::nullopt;
  }
  std::vector<int32_t> ends{0}, position;
  for (const int64_t length : lengths) {
    ends.push_back(ends.back() + static_cast<int32_t>(length));
    const size_t before = position.size();
    position.resize(before + static_cast<size_t>(length));
    std::iota(position.begin() + static_cast<int64_t>(before), position.end(), 0);
  }
  const RopeTable table = rope_table(
      rope_frequencies(config.rope, config.head_dim, config.max_position_embeddings, longest), 0,
      longest);
  const auto half = [&](const Tensor& both) {
    return both.narrow(1, 0, config.head_dim / 2).contiguous().to(device);
  };
  return PackTables{at::tensor(ends, at::kInt).to(device),
                    at::tensor(position, at::kInt).to(device), half(table.cosine), half(table.sine),
                    longest};
}

Tensor packed_attention(const Tensor& qkv, const std::vector<int64_t>& lengths,
                        const PackTables& tables, const ModelConfig& config) {
  RECORD_USER_SCOPE("attention");
  const PackHeads heads = rotated(qkv, tables, config);
  const Tensor out = fits_flash(qkv, config) ? by_flash(heads, tables) : by_lengths(heads, lengths);
  return out.reshape({qkv.size(0), config.heads * config.head_dim});
}

}  // namespace moe::model
