#pragma once
// What a Llama holds, for the files that make up its class: few large tensors (one qkv, one
// gate_up, one down a layer), so that a layer is few matrix products, and the table that ties them
// to the names and shapes of the Hugging Face files.

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "core/model/config/weights.h"
#include "core/model/llama/llama.h"
#include "core/model/moe/expert_parallel.h"

namespace moe::model {

struct Layer {
  at::Tensor input_norm, post_norm;  // [D]
  AttentionWeights attention;
  at::Tensor router;   // [E, D], undefined in a dense layer
  at::Tensor gate_up;  // [E/G, 2F, D], the experts that are here; a dense layer has one
  at::Tensor down;     // [E/G, D, F]
  Adapter gate_up_adapter, down_adapter;
};

// A weight that may have an adapter.
struct AdaptedWeight {
  std::string name;  // within the layer
  std::string part;  // of LoraSettings::on
  at::Tensor* weight;
  Adapter* adapter;
};

std::vector<AdaptedWeight> adapted_weights(Layer& layer);

struct Llama::Weights {
  ModelConfig config;
  ExpertParallel parallel;
  ComputeOptions compute;
  LoraSettings lora;
  // Matrices are f32, or bf16 in a model that is not trained; the rest is f32, and so are routers.
  at::Tensor embedding;  // [V, D]
  at::Tensor norm;       // [D]
  at::Tensor head;       // [V, D], undefined when tied
  std::vector<Layer> layers;
  std::map<std::string, at::Tensor>
      idle;  // gates of shared experts that are not there: kept, not used

  Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device = at::kCPU, at::ScalarType matrices = at::kFloat);

  // File name -> the part of a weight tensor that holds it, in the names of `form`. Experts go by
  // their number among all; those of other processes are left out.
  std::map<std::string, at::Tensor> stored_views(FolderForm form) const;

 private:
  void add_attention_views(int64_t index, std::map<std::string, at::Tensor>& views) const;
  void add_feed_forward_views(int64_t index, const MoeNames& names,
                              std::map<std::string, at::Tensor>& views) const;
};

}  // namespace moe::model
