#include "core/train/observe/relu_stages.h"

namespace moe::train {

namespace {

constexpr double kStillDense = 0.05;  // above S_0: what S wanders by itself while lambda is nothing

}  // namespace

bool ReluStages::add(int64_t step, double sparsity, double target) {
  target_ = target;
  if (!first_) {
    first_ = sparsity;
  }
  if (sparsifying_end_) {
    return false;
  }
  if (sparsity >= target) {
    sparsifying_end_ = step;
    return true;
  }
  if (sparsity <= *first_ + kStillDense) {
    dense_end_ = step;
  }
  return false;
}

OrderedJson ReluStages::to_json() const {
  if (!first_) {
    return nullptr;
  }
  return {{"first_sparsity", *first_},
          {"target", target_},
          {"dense_end", dense_end_},
          {"sparsifying_end", sparsifying_end_.value_or(0)}};
}

ReluStages ReluStages::from_json(const Json& json, const std::string& where) {
  ReluStages stages;
  if (json.is_null()) {
    return stages;
  }
  stages.first_ = get_double(json, "first_sparsity", where);
  stages.target_ = get_double(json, "target", where);
  stages.dense_end_ = get_int(json, "dense_end", where);
  if (const int64_t end = get_int(json, "sparsifying_end", where); end > 0) {
    stages.sparsifying_end_ = end;
  }
  return stages;
}

}  // namespace moe::train
