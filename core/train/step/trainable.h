#pragma once
// Selection of the parameters that train (--train), and their storage in bf16.

#include <string>
#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Returns the parameters named by any of `words`, in the model's order; all of them if `words` is
// empty. A word is a group (experts, router, attention, dense, norms, embeddings) or a pattern of
// names with a * (model.layers.0.*). Adapters always train; with them, no words mean the router.
// Throws UserError for a word that is neither, or that matches no parameter.
std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words);

// Returns true if `words` name the router of MoE layer `layer`, or are empty.
bool trains_router(const std::vector<std::string>& words, int64_t layer);
// Overload for the whole model: true if the router of any MoE layer trains.
bool trains_router(const std::vector<std::string>& words, const model::ModelConfig& config);

// Returns true if a parameter that trains has a bf16 working copy
// (kernels/ops/bf16_working_copy.h): matrices of bf16 runs on GPUs, except routers and gates of
// shared experts (f32 products), embeddings without a product, and sharded matrices (cast when they
// are gathered). False with recomputation of layers, to save memory.
bool has_bf16_copy(const model::NamedParameter& parameter, const model::ModelConfig& config,
                   const TrainSettings& settings);

// Returns true if a sharded matrix is gathered in bf16: in bf16 runs on GPUs, except the embedding.
bool is_gathered_in_bf16(const model::NamedParameter& parameter, const TrainSettings& settings);

// Returns the layer of a parameter name; -1 if it is outside of the layers.
int64_t layer_index(const std::string& name);

}  // namespace moe::train
