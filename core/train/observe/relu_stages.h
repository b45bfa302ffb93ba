#pragma once
// When the stages of ReLU training end (core/route/README.md, "Stages of ReLU training"): dense
// while lambda is too small to matter, then sparsifying, then stable around the target.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"

namespace moe::train {

class ReluStages {
 public:
  // The sparsity S of a step and its target S*; steps ascend. Whether the sparsifying stage ended
  // with it, which happens once.
  bool add(int64_t step, double sparsity, double target);

  bool has_begun() const { return first_.has_value(); }
  double target() const { return target_; }
  // The last step with S <= S_0 + 0.05, S_0 of the first step; of those before the stage after it
  // ended. 0 where no step was dense.
  int64_t dense_end() const { return dense_end_; }
  // The first step with S >= S*.
  std::optional<int64_t> sparsifying_end() const { return sparsifying_end_; }

  OrderedJson to_json() const;  // null before the first step
  // UserError, opened by `where`: it is not what to_json() makes.
  static ReluStages from_json(const Json& json, const std::string& where);

 private:
  std::optional<double> first_;
  double target_ = 0;
  int64_t dense_end_ = 0;
  std::optional<int64_t> sparsifying_end_;
};

}  // namespace moe::train
