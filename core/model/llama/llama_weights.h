#pragma once
// Weights of a Llama: few large tensors per layer, so that it is few matrix products, and the table
// that maps them to the tensors of checkpoints. Private to the files that implement Llama.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/model/config/weights.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/weight_shards.h"
#include "core/model/moe/dispatch_layout.h"
#include "core/model/moe/layer.h"

namespace moe::model {

struct Layer {
  at::Tensor input_norm, post_norm;  // [D]
  AttentionWeights attention;
  at::Tensor router;        // [E, D], undefined in a dense layer
  at::Tensor router_bias;   // [E] f32 of the expert choice; undefined if the model has none
  kernels::Weight gate_up;  // [L, 2F, D], L experts of this process, or 1 in a dense layer
  kernels::Weight down;     // [L, D, F]
  Adapter gate_up_adapter, down_adapter;
  SharedExpert shared_expert;  // undefined if the layer has none
};

// A weight that may have an adapter.
struct AdaptedWeight {
  std::string name;    // within the layer
  std::string part;    // of LoraSettings::on
  at::Tensor* weight;  // undefined if the matrices are mapped
  Adapter* adapter;
  bool is_expert = false;  // of the routed experts
};

std::vector<AdaptedWeight> adapted_weights(Layer& layer);

// Units of sharded weights: the embedding, the layers, and the head (the embedding if tied).
constexpr size_t kEmbeddingUnit = 0;
inline size_t layer_unit(int64_t layer) { return static_cast<size_t>(layer) + 1; }
inline size_t head_unit(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingUnit : layer_unit(config.layers);
}

// For each matrix of a weight (one per expert), the tensors of the checkpoint that hold its rows.
using BlockNames = std::vector<std::vector<std::string>>;

// A weight of the model and the tensors of a checkpoint that hold it.
struct MatrixSlot {
  kernels::Weight* weight = nullptr;  // this or `tensor`
  at::Tensor* tensor = nullptr;
  size_t unit = 0;
  std::vector<int64_t> shape = {};
  BlockNames names = {};
  std::vector<int64_t> rows = {};  // of each tensor of a matrix
  bool is_expert = false;          // of the routed experts, which are not sharded

  kernels::Weight value() const { return tensor != nullptr ? kernels::Weight(*tensor) : *weight; }
};

// Elements begin .. begin + count - 1 of a sharded matrix, which a tensor of a checkpoint holds.
struct StoredRange {
  const ShardedWeight* weight;
  int64_t begin, count;
};

struct Llama::Weights {
  ModelConfig config;
  ExpertParallel parallel;
  ComputeOptions compute;
  LoraSettings lora;
  // Routers, norms and biases are always f32.
  Storage storage = Storage::kF32;
  bool is_mapped = false;  // the matrices alias the mapped files of the checkpoint
  at::Tensor embedding;    // [V, D]
  at::Tensor norm;         // [D]
  at::Tensor head;         // [V, D], undefined if tied
  std::vector<Layer> layers;
  // Gates of shared experts of width 0. They are not used, only written back.
  std::map<std::string, at::Tensor> idle;
  std::unique_ptr<WeightShards> shards;  // of the dense matrices; null: not sharded

  // Allocates f32 weights.
  Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device = at::kCPU, distributed::Comm* sharded_over = nullptr);
  // Storage::kStored. On the CPU the matrices alias the mapped files, and all values are set;
  // elsewhere allocates weights in the dtypes for products in `precision`.
  Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
          const ExpertParallel& expert_parallel, at::Device device, Precision precision);

  // Returns the tensors of a checkpoint by name in `form`, as views of the weights, without experts
  // of other processes and sharded matrices.
  std::map<std::string, at::Tensor> stored_views(FolderForm form);
  // Returns the tensors of a checkpoint that are held by sharded matrices.
  std::map<std::string, StoredRange> sharded_ranges(FolderForm form);
  // Gathers all sharded matrices in bf16, except the embedding, whose lookup is in f32.
  void gather_in_bf16();

 private:
  struct WithoutMatrices {};
  // Returns the dtype of a matrix from its tensors in the checkpoint.
  using TypeOfMatrix = std::function<at::ScalarType(const BlockNames&)>;

  Weights(WithoutMatrices, const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device);
  void make_matrices(const MoeNames& names, const TypeOfMatrix& type_of);
  // Returns all matrices: embedding, head unless tied, then layer by layer.
  std::vector<MatrixSlot> matrix_slots(const MoeNames& names);
  void add_attention_slots(int64_t index, std::vector<MatrixSlot>& slots);
  void add_feed_forward_slots(int64_t index, const MoeNames& names, std::vector<MatrixSlot>& slots);
  void add_vector_views(int64_t index, const MoeNames& names,
                        std::map<std::string, at::Tensor>& views) const;
};

}  // namespace moe::model
