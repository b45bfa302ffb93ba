#pragma once
// Grouped-query causal self-attention over packed sequences, through scaled_dot_product_attention.
// T tokens, D model width, H heads, G key/value heads, A head width.

#include <torch/types.h>

#include <vector>

#include "core/model/adapter.h"
#include "core/model/config.h"

namespace moe::model {

struct AttentionWeights {
  torch::Tensor qkv;     // [(H + 2 G) A, D]: query rows, key rows, value rows
  torch::Tensor output;  // [D, H A]
  torch::Tensor bias;    // [(H + 2 G) A], of the rows of qkv; undefined where there is none
  Adapter qkv_adapter = {}, output_adapter = {};
};

// Keys and values seen so far by one layer, [B, G, S, A]; undefined before the first token.
struct LayerCache {
  torch::Tensor keys, values;
};

// x [T, D], the normed input; sequence i is the next lengths[i] tokens; positions start at 0, or
// after what `cache` holds (then all lengths are equal and the cache is extended). Returns [T, D],
// the residual not included.
torch::Tensor attention_forward(const torch::Tensor& x,
                                const AttentionWeights& weights,
                                const ModelConfig& config,
                                const std::vector<int64_t>& lengths,
                                LayerCache* cache);

}  // namespace moe::model
