#include "core/model/llama/kv_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"
#include "kernels/ops/operations.h"

namespace moe::model {

KvCache::KvCache(const ModelConfig& config, const KvCacheOptions& options)
    : heads_(attention_heads(config)), capacity_(options.capacity), prefix_(options.prefix) {
  if (!kernels::has_kernel<"moe::causal_attention">(options.device)) {  // which reads blocks
    MOE_CHECK(prefix_ == nullptr);
    gpu_.resize(static_cast<size_t>(config.layers));
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
