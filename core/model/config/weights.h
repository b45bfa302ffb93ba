#pragma once
// Every tensor's name and expected shape, in one table: what a folder of this config must hold, in
// the order written.

#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/config/config.h"

namespace moe::model {

// Tensors by Hugging Face names. MoE layers: mlp.gate.weight [E, D] and
// mlp.experts.{j}.{gate,up,down}_proj.weight, or by written_form() as MoeNames says; with a shared
// expert mlp.shared_expert.{gate,up,down}_proj.weight and mlp.shared_expert_gate.weight [1, D].
// dtype is that of `config.dtype`, but F32 for the routers of kMoe.
std::vector<io::TensorInfo> expected_tensors(const ModelConfig& config);

// How a form calls the parts of a MoE layer, behind "model.layers.{i}.".
struct MoeNames {
  std::string router;          // mlp.gate.weight, block_sparse_moe.gate.weight
  std::string experts;         // mlp.experts., block_sparse_moe.experts.; an index follows
  std::string gate, up, down;  // .gate_proj.weight or .w1.weight, and so on
};
MoeNames moe_names(FolderForm form);
bool is_router(const std::string& name);  // in any form
// The bias [E] of the choice, behind "model.layers.{i}.", of routers that have one; F32. The name
// is that of DeepSeek-V3's.
inline constexpr const char* kRouterBias = "mlp.gate.e_score_correction_bias";
bool is_router_bias(const std::string& name);
// The shared expert and its gate, behind "model.layers.{i}.", in every form that has them.
inline constexpr const char* kSharedExpert = "mlp.shared_expert";
inline constexpr const char* kSharedExpertGate = "mlp.shared_expert_gate.weight";
bool is_shared_expert_gate(const std::string& name);

// The tensors that make stock transformers load a qwen2_moe folder without a shared expert and
// without a complaint: per MoE layer four shared-expert tensors, three of them empty
// (core/io/formats.md). The fourth, a gate on nothing, is zero in ours. None in a Mixtral or a
// Qwen3-MoE, nor where there is a shared expert: its tensors are expected.
std::vector<io::TensorInfo> shared_expert_tensors(const ModelConfig& config);

// UserError naming the tensor when one is missing, extra, misshapen (with both shapes), not
// F32/F16/BF16, or all experts in one. Accepts `rotary_emb.inv_freq` leftovers, empty shared-expert
// tensors, and a stored lm_head in a tied model only if its shape fits.
void check_tensors(const io::Checkpoint& checkpoint, const ModelConfig& config);

struct ParameterCount {
  int64_t total = 0;
  int64_t active =
      0;  // per token: a top-k MoE counts k experts (top-p and relu: k or 1 as a lower bound)
};
ParameterCount count_parameters(const ModelConfig& config);

}  // namespace moe::model
