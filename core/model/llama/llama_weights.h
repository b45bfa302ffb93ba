#pragma once
// What a Llama holds, for the files that make up its class: few large tensors (one qkv, one
// gate_up, one down a layer), so that a layer is few matrix products, and the table that ties them
// to the names and shapes of the Hugging Face files. For inference the matrices keep their stored
// type, on the CPU as the tensors of those files, where they are mapped.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/model/config/weights.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/weight_shards.h"
#include "core/model/moe/expert_parallel.h"
#include "core/model/moe/shared_expert.h"

namespace moe::model {

struct Layer {
  at::Tensor input_norm, post_norm;  // [D]
  AttentionWeights attention;
  at::Tensor router;        // [E, D], undefined in a dense layer
  at::Tensor router_bias;   // [E] f32 of the choice; undefined where the model has none
  kernels::Weight gate_up;  // [E/G, 2F, D], the experts of this process; a dense layer has one
  kernels::Weight down;     // [E/G, D, F]
  Adapter gate_up_adapter, down_adapter;
  SharedExpert shared_expert;  // of a MoE layer that has one
};

// A weight that may have an adapter.
struct AdaptedWeight {
  std::string name;    // within the layer
  std::string part;    // of LoraSettings::on
  at::Tensor* weight;  // undefined where the model's matrices are mapped
  Adapter* adapter;
  bool is_expert = false;  // of the experts of a MoE layer, one for each of this process
};

std::vector<AdaptedWeight> adapted_weights(Layer& layer);

// The units of sharded weights: the embedding, the layers, the head, which is the embedding where
// tied.
constexpr size_t kEmbeddingUnit = 0;
inline size_t unit_of_layer(int64_t layer) { return static_cast<size_t>(layer) + 1; }
inline size_t head_unit(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingUnit : unit_of_layer(config.layers);
}

// How a folder calls the matrices of a layer: for each matrix of a weight (an expert is one) the
// tensors that hold its rows, in order.
using BlockNames = std::vector<std::vector<std::string>>;
struct LayerNames {
  BlockNames qkv, output, gate_up, down, shared_gate_up, shared_down;
};

// A weight and the tensors of a folder that hold its matrices; `rows` are those of each tensor.
struct StoredMatrices {
  kernels::Weight weight;
  BlockNames names;
  std::vector<int64_t> rows;
};

// Elements of a sharded matrix, from `begin` on, that a tensor of a folder holds.
struct StoredRange {
  const ShardedWeight* weight;
  int64_t begin, count;
};

struct Llama::Weights {
  ModelConfig config;
  ExpertParallel parallel;
  ComputeOptions compute;
  LoraSettings lora;
  // Storage::kStored: matrices are of the types that kept_type() says, or mapped as they are
  // stored. Else they are f32, as routers, norms and biases always are.
  Storage storage = Storage::kF32;
  at::Tensor embedding;  // [V, D]
  at::Tensor norm;       // [D]
  at::Tensor head;       // [V, D], undefined when tied
  std::vector<Layer> layers;
  // Gates of shared experts of width 0: read and written back, multiplied with nothing.
  std::map<std::string, at::Tensor> idle;
  std::unique_ptr<WeightShards>
      shards;  // of the matrices but those of experts; null: all are whole

  Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device = at::kCPU, distributed::Comm* sharded_over = nullptr);
  // Of a folder, Storage::kStored. On the CPU its matrices are mapped, and their tensors keep the
  // files mapped; elsewhere all is to be filled, as above, for products of `its_compute`.
  Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
          const ExpertParallel& expert_parallel, at::Device device,
          const ComputeOptions& its_compute);

  // File name -> the part of a weight tensor that holds it, in the names of `form`. Experts go by
  // their number among all; those of other processes are left out, and what lies in sharded
  // matrices.
  std::map<std::string, at::Tensor> stored_views(FolderForm form) const;
  // Gathers all sharded matrices so but the embedding, which is looked up in f32.
  void gather_in_bf16();
  // The tensors that lie in sharded matrices.
  std::map<std::string, StoredRange> sharded_ranges(FolderForm form) const;

 private:
  struct WithoutMatrices {};
  // The dtype of a matrix of these tensors of the folder.
  using TypeOfMatrix = std::function<at::ScalarType(const BlockNames&)>;

  Weights(WithoutMatrices, const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device);
  void make_matrices(const MoeNames& names, const TypeOfMatrix& type_of);
  void map_matrices(const io::Checkpoint& checkpoint, const MoeNames& names);
  LayerNames layer_names(int64_t index, const MoeNames& names) const;
  void add_vector_views(int64_t index, const MoeNames& names,
                        std::map<std::string, at::Tensor>& views) const;
  std::vector<StoredMatrices> stored_matrices(const MoeNames& names) const;
};

}  // namespace moe::model
