#include "core/train/loop/updater.h"

#include <ATen/record_function.h>

namespace moe::train {

namespace {

std::vector<model::NamedParameter> named(const std::vector<Slice>& slices) {
  std::vector<model::NamedParameter> all;
  for (const auto& slice : slices) {
    all.push_back({slice.name, slice.values});
  }
  return all;
}

}  // namespace

Updater::Updater(const std::vector<model::NamedParameter>& trained, const AdamWSettings& settings,
                 uint64_t seed, distributed::World* world)
    : trained_(trained),
      shards_(world == nullptr ? std::nullopt : std::optional<RankShards>({trained, *world})),
      updated_(shards_ ? named(shards_->slices()) : trained),
      optimizer_(shards_ ? shards_->slices() : whole_slices(trained), settings, seed) {}

void Updater::clear_gradients() {
  for (const auto& parameter : trained_) {
    parameter.tensor.mutable_grad() = at::Tensor();
    if (parameter.shard.defined()) {  // also an empty one, which the optimizer does not have
      parameter.shard.mutable_grad() = at::Tensor();
    }
  }
  optimizer_.clear_gradients();
}

double Updater::gradient_norm() {
  RECORD_USER_SCOPE("optimizer");
  if (!shards_) {
    return train::gradient_norm(trained_);
  }
  shards_->reduce_gradients();
  return shards_->norm();
}

void Updater::step(double norm, double clip, double lr) {
  RECORD_USER_SCOPE("optimizer");
  if (!updated_.empty() && updated_.front().tensor.is_cuda()) {
    optimizer_.step(lr, clip_scale(norm, clip));
  } else {
    clip_gradients(updated_, norm, clip);
    optimizer_.step(lr);
  }
  if (shards_) {
    shards_->gather_weights();
  }
}

}  // namespace moe::train
