#pragma once
// Weights of a Llama, and the table that maps them to parameters and to tensors of checkpoints.
// Matrices that multiply the same input are one tensor, so that a layer needs few matrix products.
// Private to the files that implement Llama.

#include <ATen/ATen.h>

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
  at::Tensor router;           // [E, D], undefined in a dense layer
  at::Tensor router_bias;      // [E] f32, added to the scores for the choice; undefined: none
  Experts experts;             // of this process, or the dense feed-forward
  SharedExpert shared_expert;  // undefined if the layer has none
};

// Units of sharded weights: the embedding, the layers, and the head (the embedding if tied).
constexpr size_t kEmbeddingUnit = 0;
inline size_t layer_unit(int64_t layer) { return static_cast<size_t>(layer) + 1; }
inline size_t head_unit(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingUnit : layer_unit(config.layers);
}

// For each matrix of a weight (one per expert), the tensors of the checkpoint that hold its rows.
using BlockNames = std::vector<std::vector<std::string>>;

// A weight of the model and the tensors of a checkpoint that hold it.
struct WeightSlot {
  // kSmall: norms, biases, routers and the gates of shared experts: f32 and not sharded.
  // kExperts: matrices of the routed experts of this process, which are not sharded either.
  enum class Kind { kSmall, kDense, kExperts };

  std::string name = {};  // NamedParameter::name; empty: not a parameter
  Kind kind = Kind::kSmall;
  at::Tensor* tensor = nullptr;
  std::vector<int64_t> shape = {};
  BlockNames names = {};
  std::vector<int64_t> rows = {};  // number of rows of each tensor of a matrix
  size_t unit = 0;
  kernels::Weight* weight = nullptr;  // holds `tensor`, or several mapped tensors; may be null
  Adapter* adapter = nullptr;         // null: the weight cannot have one
  std::string lora_part = {};         // its name in LoraSettings::on

  kernels::Weight value() const { return weight != nullptr ? *weight : kernels::Weight(*tensor); }
};

// Elements begin .. begin + count - 1 of a sharded matrix, the values of one checkpoint tensor.
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
  // Gates of shared experts of width 0, which are only written back.
  std::map<std::string, at::Tensor> unused_gates;
  std::unique_ptr<WeightShards> shards;  // of the dense matrices; null: not sharded

  // Allocates f32 weights.
  Weights(const ModelConfig& model_config, const ExpertParallel& expert_parallel,
          at::Device device = at::kCPU, distributed::Comm* sharded_over = nullptr);
  // Storage::kStored. On a CPU, matrices alias the mapped files. On a GPU, matrices are allocated
  // in the dtypes for products in `precision`.
  Weights(const io::Checkpoint& checkpoint, const ModelConfig& model_config,
          const ExpertParallel& expert_parallel, at::Device device, Precision precision);

  // Returns the tensors of a checkpoint by name in `form`, as views of the weights. Leaves out
  // experts of other processes and sharded matrices.
  std::map<std::string, at::Tensor> stored_views(FolderForm form);
  // Returns the tensors of a checkpoint whose values are in sharded matrices.
  std::map<std::string, StoredRange> sharded_ranges(FolderForm form);
  // Gathers all sharded matrices in bf16, except the embedding, whose lookup is in f32.
  void gather_in_bf16();

  // Returns all weights: embedding, layer by layer, final norm, and the head unless tied.
  std::vector<WeightSlot> slots(const MoeNames& names = moe_names(FolderForm::kMoe));

 private:
  void make_layers();
  void add_layer_slots(int64_t index, const MoeNames& names, std::vector<WeightSlot>& all);
};

}  // namespace moe::model
