#include "core/model/llama/sequence_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/base/error.h"

namespace moe::model {

namespace {

kernels::AttentionHeads heads_of(const ModelConfig& config) {
  return {config.heads, config.kv_heads, config.head_dim};
}

}  // namespace

SequenceCache::SequenceCache(const ModelConfig& config, int64_t capacity,
                             std::shared_ptr<const SequenceCache> prefix, const at::Tensor& memory)
    : heads_(heads_of(config)), capacity_(capacity), prefix_(std::move(prefix)) {
  MOE_CHECK(prefix_ == nullptr || prefix_->prefix_ == nullptr);
  const int64_t of_layer = kernels::kept_floats(heads_, capacity);
  const at::Tensor all =
      memory.defined() ? memory : at::empty({floats(config, capacity)}, at::kFloat);
  MOE_CHECK(all.numel() == config.layers * of_layer);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layers_.push_back(
        kernels::kept_keys_in(all.narrow(0, layer * of_layer, of_layer), heads_, capacity));
  }
}

int64_t SequenceCache::floats(const ModelConfig& config, int64_t capacity) {
  return config.layers * kernels::kept_floats(heads_of(config), capacity);
}

void SequenceCache::make_room(int64_t tokens) {
  if (own_length_ + tokens <= capacity_) {
    return;
  }
  capacity_ = std::max(own_length_ + tokens, 2 * capacity_);
  for (kernels::KeptKeys& kept : layers_) {
    kept = kernels::with_room(kept, heads_, capacity_);
  }
}

int64_t SequenceCache::length() const {
  return own_length_ + (prefix_ == nullptr ? 0 : prefix_->own_length_);
}

kernels::KeptSequence SequenceCache::layer(int64_t index) const {
  const auto number = static_cast<size_t>(index);
  kernels::KeptSequence kept{layers_.at(number), own_length_};
  if (prefix_ != nullptr) {
    kept.prefix = prefix_->layers_.at(number);
    kept.prefix_length = prefix_->own_length_;
  }
  return kept;
}

}  // namespace moe::model
