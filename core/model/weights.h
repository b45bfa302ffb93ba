#pragma once
// Every tensor's name and expected shape, in one table: what a folder of this config must hold, in
// the order written.

#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/config.h"

namespace moe::model {

// Tensors by Hugging Face names. MoE layers: mlp.gate.weight [E, D] F32,
// mlp.experts.{j}.{gate,up,down}_proj.weight. dtype is that of `config.dtype` but for the routers.
// Without the empty shared-expert tensors (see below).
std::vector<io::TensorInfo> expected_tensors(const ModelConfig& config);

// The tensors that make stock transformers load our folders without a complaint: per MoE layer four
// shared-expert tensors, three of them empty, one zero (DESIGN section 3).
std::vector<io::TensorInfo> shared_expert_tensors(const ModelConfig& config);

// UserError naming the tensor when one is missing, extra, misshapen (with both shapes) or not
// F32/F16/BF16. Accepts `rotary_emb.inv_freq` leftovers, shared-expert tensors, and a stored
// lm_head in a tied model only if its shape fits.
void check_tensors(const io::Checkpoint& checkpoint, const ModelConfig& config);

struct ParameterCount {
  int64_t total = 0;
  int64_t active =
      0;  // per token: a top-k MoE counts k experts (top-p and relu: k or 1 as a lower bound)
};
ParameterCount count_parameters(const ModelConfig& config);

}  // namespace moe::model
