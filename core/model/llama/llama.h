#pragma once
// The model: embedding, layers of attention and feed-forward (dense or MoE), final norm and head,
// as in transformers, on packed sequences.
//
// T tokens, D model width, N selected tokens, V vocabulary, E experts, W logical ranks, G processes
// of an expert-parallel group.

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/io/checkpoint.h"
#include "core/model/config/compute.h"
#include "core/model/config/config.h"
#include "core/model/config/folder_tensors.h"
#include "core/model/llama/attention.h"
#include "core/model/moe/layer.h"

namespace moe::model {

// Packed input. Sequence i is the next lengths[i] tokens, at positions from 0 or after its cache or
// prefix. Attention is causal within a sequence.
struct Packed {
  at::Tensor ids;                // [T] i64
  std::vector<int64_t> lengths;  // positive; their sum is T
  // Empty, or for each sequence the index of an earlier sequence that is its prefix, -1 for none.
  // A prefix has no prefix itself. Answers to one question thus compute the question once.
  std::vector<int64_t> prefix_index = {};
  // Empty, or one cache per sequence. The sequence continues the tokens of its cache, and forward()
  // appends the keys and values of the new tokens. Requires an empty prefix_index.
  std::vector<KvCache*> caches = {};
  // Undefined, or [N] i64, increasing: the tokens whose hidden states are returned. Inference only.
  at::Tensor output_rows = {};
};

// Settings of routing. Llama::default_routing() returns those of the checkpoint.
struct RoutingOptions {
  route::RouterSettings router;
  int64_t ep_ranks = 1;       // W, a multiple of G; each gets an equal part of the tokens
  bool count_tokens = false;  // fills ForwardResult::token_rows
  std::optional<double> gate_scale = {};  // overrides the gate_scale of the checkpoint
  // Additional losses (core/route/route.h).
  bool compute_z_loss = false, compute_sequence_balance = false;
  // All but kRank: losses are sums over tokens, and balance losses are ForwardResult::balance.
  route::LossGroup loss_group = route::LossGroup::kRank;
};

// Result for the tokens of this process. Under expert parallelism backward is a collective: every
// process of the group, with or without tokens, must run it from `hidden` and from the same losses.
struct ForwardResult {
  at::Tensor hidden;  // [T, D] f32 after the final norm; [N, D] with Packed::output_rows
  // Summed over MoE layers: means over all logical ranks with tokens. Under expert parallelism each
  // process has its part of the sum over the group.
  route::AuxLosses losses;
  std::vector<route::BalanceSums> balance;  // one per MoE layer, or none (loss_group)
  std::vector<route::Counters> counters;    // one per MoE layer, of this process only
  std::vector<at::Tensor> token_rows;  // one per MoE layer, [T, 3 + E] i64 (count_rows_by_token)
};

// Called in every layer with the normed input of its feed-forward [T, D] f32.
using OnFeedForward = std::function<void(int64_t layer, const at::Tensor& input)>;

struct NamedParameter {
  // "model.layers.0.mlp.gate_up". Norms contain "norm", adapters end with ".lora_a" or ".lora_b".
  std::string name;
  at::Tensor tensor;  // f32 leaf
  // Set for routed experts: dimension 0 has the local experts, from layout().first_expert() on.
  // All other parameters are replicated.
  bool is_expert = false;
  // Set for matrices that can be sharded: embedding, head, attention, dense feed-forward, shared
  // experts.
  bool is_dense_matrix = false;
  // Defined if the matrix is sharded (Llama::load()). `tensor` then has values only while its layer
  // runs. `shard` [n], this process's part from element `shard_begin` on, has the gradient.
  at::Tensor shard = {};
  int64_t shard_begin = 0;
};

enum class Storage {
  kF32,     // all weights in f32, for training
  kStored,  // matrices in the dtype of the checkpoint, for inference. On a CPU they alias the
            // mapped files; on a GPU they are copied, in bf16 if products are in bf16.
};

class Llama {
 public:
  // Loads a checkpoint on `device`, with the experts of the rank in `layout`, and calls
  // set_compute(compute). The checkpoint may be destroyed afterwards. With `sharded_over`, each of
  // its ranks keeps a part of every dense matrix (weight_shards.h). Forward, backward and head are
  // then collectives of `sharded_over`, which must outlive the model and its clones. Throws
  // UserError if the checkpoint is invalid.
  static Llama load(const io::Checkpoint& checkpoint, const distributed::Layout& layout = {},
                    at::Device device = at::kCPU, Storage storage = Storage::kF32,
                    const ComputeOptions& compute = {}, distributed::Comm* sharded_over = nullptr);
  // Returns a model on LibTorch's meta device: names and shapes without memory.
  static Llama without_weights(const ModelConfig& config, const distributed::Layout& layout = {});
  // Returns a copy with f32 weights, without gradients, by default on the same device.
  Llama clone(std::optional<at::Device> to_device = {}) const;
  Llama merged() const;  // clone with adapters merged into the weights
  ~Llama();
  Llama(Llama&&) noexcept;
  Llama& operator=(Llama&&) noexcept;

  const ModelConfig& config() const;
  const distributed::Layout& layout() const;
  at::Device device() const;
  uint64_t mapped_bytes() const;  // of all weights if matrices are mapped files, else 0
  // Sets the expert-parallel group, or nullptr if this process holds all experts. Forward and
  // backward become collectives of the group, which must outlive them. Clones keep the group.
  void set_group(distributed::Comm* group);
  // Precision::kTf32 enables TF32 for the whole process: LibTorch has no finer switch.
  void set_compute(const ComputeOptions& compute);
  const ComputeOptions& compute() const;
  // Adds adapters, which do not change outputs until they are trained.
  void add_lora(const LoraSettings& settings, uint64_t seed);
  const LoraSettings& lora() const;  // LoRA rank 0: no adapters
  // Adds a bias of zeros to every router that has none, or removes the biases.
  void set_router_bias(bool has_bias);
  std::vector<at::Tensor> router_biases() const;  // [E] f32 per MoE layer, or none
  RoutingOptions default_routing() const;         // of the checkpoint

  // Runs the model. Throws UserError if a sequence is longer than the sliding window.
  ForwardResult forward(const Packed& tokens, const RoutingOptions& routing,
                        const OnFeedForward& on_feed_forward = {}) const;
  at::Tensor head(const at::Tensor& hidden) const;  // [N, D] -> logits [N, V] f32
  // Calls `body` with the matrix of the head [V, D], or of the embedding if tied. A sharded matrix
  // is gathered for the call, and its gradient is reduced afterwards.
  void with_head(const std::function<void(const at::Tensor& weight)>& body) const;
  at::ScalarType product_type() const;  // dtype of operands: f32 or bf16

  // Returns every trainable tensor once. Requires Storage::kF32.
  std::vector<NamedParameter> parameters() const;
  void require_gradients();
  bool is_sharded() const;
  void finish_backward() const;  // must be called after every backward of a sharded model
  // Returns the whole tensor of a parameter. A collective if it is sharded.
  at::Tensor gathered(const NamedParameter& parameter) const;
  // Returns the tensors of the checkpoint in written_form(), without adapters; undefined for
  // experts of other processes.
  std::vector<FolderTensor> folder_tensors(const RoutingOptions& routing) const;

 private:
  struct Weights;
  Llama();
  std::unique_ptr<Weights> weights_;
};

// Loss coefficients to store in config.json. Empty: unchanged.
struct LossCoefficients {
  std::optional<double> load_balance = {}, entropy = {};
  std::optional<double> lambda = {};  // ReLU: value for the next step
  std::optional<double> z = {}, sequence_balance = {};
};

// Writes a checkpoint into `folder`, without committing it: config.json (keys of `parent`, updated
// with `routing` and `coefficients`), tensors with adapters merged, and the tokenizer files of
// `parent`. A collective of folder.ranks(). Throws UserError on all ranks if one fails.
void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const SharedFolder& folder, const LossCoefficients& coefficients = {});

// Writes a checkpoint, to which rank 0 adds files, and commits it. A collective of `ranks`.
void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force, distributed::Comm& ranks,
                 const LossCoefficients& coefficients = {},
                 const std::function<void(const std::filesystem::path&)>& add_files = {});

}  // namespace moe::model
