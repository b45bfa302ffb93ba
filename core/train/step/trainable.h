#pragma once
// Which parameters train: all, those that --train names, or adapters and what is named beside them.

#include <string>
#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/config/settings.h"

namespace moe::train {

// The parameters that any of `words` names, in the model's order; without words all of them. Of a
// model with adapters these train always, beside what is named, and without words the router does:
// one that stays random learns nothing. A word is a group (experts, router, attention, dense,
// norms, embeddings) or, with a * in it, a pattern
// over parameter names (model.layers.0.*). UserError: a word that is neither, or names nothing in
// this model.
std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words);

// Returns true if `words` name the router of MoE layer `layer`, or are empty, which names all.
bool trains_router(const std::vector<std::string>& words, int64_t layer);
// Overload for the whole model: true if the router of any MoE layer trains.
bool trains_router(const std::vector<std::string>& words, const model::ModelConfig& config);

// Whether a parameter that trains keeps a bf16 copy (kernels/ops/bf16_working_copy.h): the matrices
// of a run in bf16 on GPUs, but routers and the gates of shared experts, whose products are in f32,
// and an embedding that is only looked up. Sharded ones are gathered as they are read. Not where
// layers are computed again: that run is short of memory.
bool keeps_copy(const model::NamedParameter& parameter, const model::ModelConfig& config,
                const TrainSettings& settings);

// Whether a sharded matrix is gathered in bf16, which is what products of a run in bf16 on GPUs
// read: all but the embedding, which is looked up.
bool is_gathered_in_bf16(const model::NamedParameter& parameter, const TrainSettings& settings);

// The layer of a parameter of that name; -1 for those outside of layers.
int64_t layer_of(const std::string& name);

}  // namespace moe::train
