#pragma once
// Table of the tensors of a checkpoint: names and shapes, in the order in which they are written.
// Upcycling, initialization, inspection, loading and check_tensors() all read this table.

#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/config/config.h"

namespace moe::model {

// Returns the tensors that a checkpoint of `config` must have, by their Hugging Face names. An MoE
// layer has mlp.gate.weight [E, D] and mlp.experts.{j}.{gate,up,down}_proj.weight, or the names of
// moe_names(written_form()). A shared expert adds mlp.shared_expert.{gate,up,down}_proj.weight and
// mlp.shared_expert_gate.weight [1, D]. The dtype is config.dtype, but F32 for the routers of kMoe.
std::vector<io::TensorInfo> expected_tensors(const ModelConfig& config);

std::string layer_prefix(int64_t layer);  // "model.layers.3."

// Names of the parts of an MoE layer in a form, after "model.layers.{i}.".
struct MoeNames {
  std::string router;          // mlp.gate.weight, block_sparse_moe.gate.weight
  std::string experts;         // mlp.experts., block_sparse_moe.experts.; an index follows
  std::string gate, up, down;  // .gate_proj.weight or .w1.weight, and so on
};
MoeNames moe_names(FolderForm form);
bool is_router(const std::string& name);  // in any form
// Bias [E] F32 of the expert choice, after "model.layers.{i}.", named as in DeepSeek-V3.
inline constexpr const char* kRouterBias = "mlp.gate.e_score_correction_bias";
bool is_router_bias(const std::string& name);
// The shared expert and its gate, after "model.layers.{i}.", in all forms with shared experts.
inline constexpr const char* kSharedExpert = "mlp.shared_expert";
inline constexpr const char* kSharedExpertGate = "mlp.shared_expert_gate.weight";
bool is_shared_expert_gate(const std::string& name);

// Returns the tensors that transformers also requires in a qwen2_moe checkpoint without a shared
// expert: a gate and three empty matrices per MoE layer (core/io/formats.md). None otherwise.
std::vector<io::TensorInfo> shared_expert_tensors(const ModelConfig& config);

// Throws UserError naming a tensor that is missing, unexpected, not F32/F16/BF16, fused over
// experts, or has another shape. Accepts buffers, shared_expert_tensors(), and in a tied model a
// head that is a copy of the embedding.
void check_tensors(const io::Checkpoint& checkpoint, const ModelConfig& config);

struct ParameterCount {
  int64_t total = 0;
  int64_t active = 0;  // used per token: k experts for top-k; a minimum for ReLU (k), top-p (1)
};
ParameterCount count_parameters(const ModelConfig& config);

}  // namespace moe::model
