#pragma once
// The experts that this process holds: SwiGLU of each over its rows, with adapters where they have
// some. L experts, D model width, F expert width, n rows sorted by expert.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/distributed/comm.h"
#include "core/model/llama/adapter.h"
#include "kernels/ops/weight.h"

namespace moe::model {

struct ShadowedExperts;

class Experts {
 public:
  // gate_up [L, 2F, D], gate rows first; down [L, D, F].
  Experts(kernels::Weight gate_up, kernels::Weight down, Adapter gate_up_adapter = {},
          Adapter down_adapter = {}, kernels::GroupedGemm gemm = kernels::GroupedGemm::kAuto);
  virtual ~Experts() = default;

  // rows [n, D], tokens_per_expert[e] of them each: [n, D].
  virtual at::Tensor run(const at::Tensor& rows,
                         const std::vector<int64_t>& tokens_per_expert) const;
  // The same where the counts stay on the device: the rows of expert e end at ends[e], `ends` [L]
  // i32 (kernels/ops/grouped_linear.h), of weights in one tensor. Rows past the last hold anything.
  virtual at::Tensor run_segments(const at::Tensor& rows, const at::Tensor& ends) const;

  // Who makes their products on a GPU.
  kernels::GroupedGemm gemm() const { return gemm_; }

  // Adapters are not replicated, nor weights of several tensors.
  bool can_be_shadowed() const;
  // A collective of `group`, forward and backward (shadowed_experts.h): what runs in the place of
  // these experts while `shadowed`, ascending among those of all processes, are replicated.
  ShadowedExperts shadowed(distributed::Comm& group, const std::vector<int64_t>& shadowed) const;

 private:
  kernels::Weight gate_up_, down_;
  Adapter gate_up_adapter_, down_adapter_;
  kernels::GroupedGemm gemm_;
};

struct ShadowedExperts {
  Experts owned, replicas;  // these experts, and replicas of those that other processes own
};

}  // namespace moe::model
