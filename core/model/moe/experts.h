#pragma once
// The experts that this process holds: SwiGLU of each over its rows, with adapters where they have
// some. L experts, D model width, F expert width, n rows sorted by expert.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/llama/adapter.h"
#include "kernels/ops/weight.h"

namespace moe::model {

class Experts {
 public:
  // gate_up [L, 2F, D], gate rows first; down [L, D, F].
  Experts(kernels::Weight gate_up, kernels::Weight down, Adapter gate_up_adapter = {},
          Adapter down_adapter = {});
  virtual ~Experts() = default;

  // rows [n, D], tokens_per_expert[e] of them each: [n, D].
  virtual at::Tensor run(const at::Tensor& rows,
                         const std::vector<int64_t>& tokens_per_expert) const;
  // The same where the counts stay on the device: the rows of expert e end at ends[e], `ends` [L]
  // i32 (kernels/ops/grouped_linear.h), of weights in one tensor. Rows past the last hold anything.
  virtual at::Tensor run_segments(const at::Tensor& rows, const at::Tensor& ends) const;

 private:
  kernels::Weight gate_up_, down_;
  Adapter gate_up_adapter_, down_adapter_;
};

}  // namespace moe::model
