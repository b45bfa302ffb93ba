#include "core/model/llama/sequence_cache.h"

#include <algorithm>

#include "core/base/error.h"

namespace moe::model {

SequenceCache::SequenceCache(const ModelConfig& config, int64_t capacity,
                             std::shared_ptr<const SequenceCache> prefix)
    : heads_{config.heads, config.kv_heads, config.head_dim},
      capacity_(capacity),
      prefix_(std::move(prefix)) {
  MOE_CHECK(prefix_ == nullptr || prefix_->prefix_ == nullptr);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layers_.push_back(kernels::make_kept_keys(heads_, capacity));
  }
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
