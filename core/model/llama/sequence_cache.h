#pragma once
// Keys and values of one sequence in every layer, on the CPU: what its next tokens attend to. A
// batch of sequences of any lengths has one each; sequences with a common beginning keep that once.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/config/config.h"
#include "kernels/ops/cached_attention.h"

namespace moe::model {

class SequenceCache {
 public:
  // Room for `capacity` tokens at first, behind those of `prefix`, which has no prefix itself and
  // gets no more tokens from then on. In `memory`, where there is some: floats(), f32.
  SequenceCache(const ModelConfig& config, int64_t capacity,
                std::shared_ptr<const SequenceCache> prefix = nullptr,
                const at::Tensor& memory = {});
  static int64_t floats(const ModelConfig& config, int64_t capacity);

  int64_t length() const;  // of all tokens so far, the prefix's too: the next one's position
  kernels::KeptSequence layer(int64_t index) const;
  void make_room(int64_t tokens);  // for so many more; at least twice the room where it takes more
  void add(int64_t tokens) { own_length_ += tokens; }  // when all layers have theirs

 private:
  kernels::AttentionHeads heads_;
  std::vector<kernels::KeptKeys> layers_;
  int64_t capacity_;
  int64_t own_length_ = 0;
  std::shared_ptr<const SequenceCache> prefix_;
};

}  // namespace moe::model
