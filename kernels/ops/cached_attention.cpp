// Checks, and shares out (sequence, group) pairs among threads.

#include "kernels/ops/cached_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <numeric>

namespace moe::kernels {

namespace {

using at::Tensor;

KeptRun run_of(const KeptKeys& kept, int64_t group, int64_t length) {
  if (!kept.keys.defined()) {
    return {nullptr, nullptr, 0};
  }
  return {kept.keys.data_ptr<float>() + group * kept.keys.stride(0),
          kept.values.data_ptr<float>() + group * kept.values.stride(0), length};
}

template <typename Number>
void attend_all(const Tensor& qkv, const AttentionHeads& heads, const std::vector<int64_t>& lengths,
                const std::vector<KeptSequence>& kept, const Rotation& rotation,
                const Tensor& out) {
  std::vector<int64_t> first(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), first.begin(), int64_t{0});
  const auto pairs = static_cast<int64_t>(lengths.size()) * heads.kv_heads;
  at::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto sequence = static_cast<size_t>(pair / heads.kv_heads);
      const int64_t group = pair % heads.kv_heads, token = first[sequence];
      const KeptSequence& past = kept[sequence];
      const AttentionInput<Number> in{
          static_cast<const Number*>(qkv.const_data_ptr()) + token * heads.row(),
          rotation.cosine.const_data_ptr<float>() + token * heads.width,
          rotation.sine.const_data_ptr<float>() + token * heads.width,
          lengths[sequence],
          heads,
          past.prefix_length + past.length};
      cached_attention_cpu(
          in, group, run_of(past.prefix, group, past.prefix_length),
          run_of(past.own, group, past.length),
          static_cast<Number*>(out.data_ptr()) + token * heads.heads * heads.width);
    }
  });
}

void check_kept(const Tensor& qkv, const AttentionHeads& heads, const std::vector<int64_t>& lengths,
                const std::vector<KeptSequence>& kept, const Rotation& rotation) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TORCH_CHECK(has_causal_attention(qkv) && qkv.dim() == 2 && qkv.size(0) == tokens &&
                  qkv.size(1) == heads.row() && heads.heads % heads.kv_heads == 0 &&
                  heads.width % 2 == 0 && kept.size() == lengths.size() &&
                  rotation.cosine.size(0) == tokens && rotation.cosine.size(1) == heads.width &&
                  !(at::GradMode::is_enabled() && qkv.requires_grad()),
              "qkv is ", qkv.sizes(), ", lengths sum to ", tokens, ", rotation is ",
              rotation.cosine.sizes());
  for (size_t i = 0; i < lengths.size(); ++i) {
    TORCH_CHECK(lengths[i] > 0 && kept[i].length + lengths[i] <= kept[i].own.values.size(1),
                "room for ", kept[i].own.values.size(1), " positions, ", kept[i].length,
                " are kept, ", lengths[i], " come");
  }
}

}  // namespace

int64_t kept_floats(const AttentionHeads& heads, int64_t capacity) {
  const int64_t blocks = (capacity + kKeyBlock - 1) / kKeyBlock;
  return 2 * heads.kv_heads * blocks * kKeyBlock * heads.width;
}

KeptKeys kept_keys_in(const Tensor& memory, const AttentionHeads& heads, int64_t capacity) {
  const int64_t blocks = (capacity + kKeyBlock - 1) / kKeyBlock, half = memory.numel() / 2;
  return {memory.narrow(0, 0, half).view({heads.kv_heads, blocks, heads.width, kKeyBlock}),
          memory.narrow(0, half, half).view({heads.kv_heads, blocks * kKeyBlock, heads.width})};
}

KeptKeys make_kept_keys(const AttentionHeads& heads, int64_t capacity) {
  return kept_keys_in(at::empty({kept_floats(heads, capacity)}, at::kFloat), heads, capacity);
}

KeptKeys with_room(const KeptKeys& kept, const AttentionHeads& heads, int64_t capacity) {
  KeptKeys larger = make_kept_keys(heads, capacity);
  larger.keys.narrow(1, 0, kept.keys.size(1)).copy_(kept.keys);
  larger.values.narrow(1, 0, kept.values.size(1)).copy_(kept.values);
  return larger;
}

Tensor cached_attention(const Tensor& given, const AttentionHeads& heads,
                        const std::vector<int64_t>& lengths, const std::vector<KeptSequence>& kept,
                        const Rotation& rotation) {
  check_kept(given, heads, lengths, kept, rotation);
  RECORD_USER_SCOPE("attention");
  const Tensor qkv = given.contiguous();
  const Tensor out = at::empty({qkv.size(0), heads.heads * heads.width}, qkv.options());
  const bool is_bf16 = qkv.scalar_type() == at::kBFloat16;
  const auto all = is_bf16 ? attend_all<uint16_t> : attend_all<float>;
  all(qkv, heads, lengths, kept, {rotation.cosine.contiguous(), rotation.sine.contiguous()}, out);
  return out;
}

}  // namespace moe::kernels
