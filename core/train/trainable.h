#pragma once
// Which parameters train: all, or those that --train names.

#include <string>
#include <vector>

#include "core/model/llama.h"

namespace moe::train {

// The parameters that any of `words` names, in the model's order; all of them without words. A word
// is a group (experts, router, attention, dense, norms, embeddings) or, with a * in it, a pattern
// over parameter names (model.layers.0.*). UserError: a word that is neither, or names nothing in
// this model.
std::vector<model::NamedParameter> trainable(const model::Llama& model,
                                             const std::vector<std::string>& words);

}  // namespace moe::train
