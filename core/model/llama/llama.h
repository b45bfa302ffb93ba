#pragma once
// The model: embedding, layers of attention and feed-forward (dense or MoE), final norm and head,
// as in transformers. Sequences are packed: [T] tokens and the lengths of the sequences, without
// padding.
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
#include "core/model/llama/kv_cache.h"
#include "core/model/moe/layer.h"

namespace moe::model {

// Packed input. Sequence i is the next lengths[i] tokens. Attention is causal within a sequence.
// The positions of a sequence start at 0, or after its cache or prefix.
struct Packed {
  at::Tensor ids;                // [T] i64
  std::vector<int64_t> lengths;  // positive; their sum is T
  // Empty, or for each sequence the index of an earlier sequence that is its prefix, -1 for none. A
  // prefix has no prefix itself. A sequence attends to its whole prefix, so that several answers to
  // one question compute the question once.
  std::vector<int64_t> prefix_index = {};
  // Empty, or one cache per sequence. The sequence continues the tokens of its cache, and forward()
  // appends the keys and values of the new tokens. Requires an empty prefix_index.
  std::vector<KvCache*> caches = {};
  // Undefined, or [N] i64, increasing: the tokens whose hidden states are returned. If the last
  // layer is dense, its feed-forward skips the other tokens. Inference only.
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
};

// Result for the tokens of this process. Under expert parallelism backward is a collective: every
// process of the group must run it from `hidden` and from the same losses. A process without tokens
// passes a gradient [0, D].
struct ForwardResult {
  at::Tensor hidden;  // [T, D] f32 after the final norm; [N, D] with Packed::output_rows
  // Summed over MoE layers. A loss is the mean over all logical ranks with tokens. Under expert
  // parallelism each process has its part, and the loss is the sum over the group.
  route::AuxLosses losses;
  std::vector<route::Counters> counters;  // one per MoE layer, of this process only
  std::vector<at::Tensor> token_rows;     // one per MoE layer, [T, 3 + E] i64 (count_rows_by_token)
};

// Callback in every layer, with the normed input of its feed-forward [T, D] f32.
using OnFeedForward = std::function<void(int64_t layer, const at::Tensor& input)>;

struct NamedParameter {
  // For example "model.layers.0.mlp.gate_up". Names of norms contain "norm". Names of adapters end
  // with ".lora_a" or ".lora_b".
  std::string name;
  at::Tensor tensor;  // f32 leaf
  // True for weights of routed experts. Dimension 0 is the experts of this process, from
  // layout().first_expert() on. All other parameters are replicated.
  bool is_expert = false;
  // True for the matrices that can be sharded: embedding, head, attention, dense feed-forward and
  // shared experts. Routers, norms, biases and adapters are never sharded: they are a thousandth of
  // a model or less.
  bool is_dense_matrix = false;
  // Defined if the matrix is sharded (Llama::load()). `tensor` then has values only while its layer
  // runs. `shard` [n] is the part of this process, from element `shard_begin` on, and has the
  // gradient. Each element is in exactly one shard.
  at::Tensor shard = {};
  int64_t shard_begin = 0;
};

enum class Storage {
  kF32,     // all weights in f32, for training
  kStored,  // matrices in the dtype of the checkpoint, for inference. On a CPU they alias the
            // mapped files. Pages are read on demand and can be evicted, so a model may be larger
            // than memory. On a GPU they are copied, in bf16 if products are in bf16, which does
            // not change the products.
};

class Llama {
 public:
  // Loads a checkpoint on `device`. Reads only the experts of the rank in `layout`. Calls
  // set_compute(compute). The precision of `compute` also selects the dtypes of Storage::kStored on
  // a GPU. With `sharded_over`, each of its ranks keeps a part of every dense matrix
  // (weight_shards.h), and forward, backward and head are collectives of it; it must outlive the
  // model and its clones. The checkpoint need not outlive the model. Throws UserError if the
  // checkpoint is invalid.
  static Llama load(const io::Checkpoint& checkpoint, const distributed::Layout& layout = {},
                    at::Device device = at::kCPU, Storage storage = Storage::kF32,
                    const ComputeOptions& compute = {}, distributed::Comm* sharded_over = nullptr);
  // Returns a model on LibTorch's meta device: names and shapes without memory.
  static Llama without_weights(const ModelConfig& config, const distributed::Layout& layout = {});
  Llama clone() const;                      // copy with f32 weights, without gradients
  Llama clone_to(at::Device device) const;  // clone on another device
  Llama merged() const;                     // clone with adapters merged into the weights
  ~Llama();
  Llama(Llama&&) noexcept;
  Llama& operator=(Llama&&) noexcept;

  const ModelConfig& config() const;
  const distributed::Layout& layout() const;
  at::Device device() const;
  // Returns the bytes of all weights if matrices are mapped files (Storage::kStored on a CPU), else
  // 0.
  uint64_t mapped_bytes() const;
  // Sets the expert-parallel group, or nullptr if this process holds all experts. Forward and
  // backward become collectives of the group, which must outlive them. Clones keep the group.
  void set_group(distributed::Comm* group);
  // Sets the options of later forwards. Precision::kTf32 enables TF32 for the whole process,
  // because LibTorch has no finer switch.
  void set_compute(const ComputeOptions& compute);
  const ComputeOptions& compute() const;
  // Adds adapters to the matrices in `settings`. Outputs do not change until the adapters
  // are trained.
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
  // Calls `body` with the matrix of the head [V, D], which is the embedding if tied. If the matrix
  // is sharded, gathers it for the call. Reduces the gradient that `body` adds: after the call, or
  // together with the gradient of the embedding if tied.
  void with_head(const std::function<void(const at::Tensor& weight)>& body) const;
  at::ScalarType product_type() const;  // dtype of operands: f32 or bf16

  // Returns every trainable tensor once. A tied head is listed as the embedding only. Requires
  // Storage::kF32.
  std::vector<NamedParameter> parameters() const;
  void require_gradients();
  bool is_sharded() const;
  // Must be called after every backward of a sharded model. Has no effect on other models.
  void finish_backward() const;
  // Returns the values of a parameter. A collective if it is sharded.
  at::Tensor gathered(const NamedParameter& parameter) const;
  // Returns the tensors of the checkpoint in written_form(), without adapters. Values of experts of
  // other processes are undefined tensors.
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

// Writes a checkpoint into `folder`: config.json (keys of `parent`, updated with `routing` and
// `coefficients`), tensors with adapters merged, and the tokenizer files of `parent`. Every rank
// writes the tensors and parts that it holds. A collective of folder.ranks(). Does not commit, so
// that the caller can add files. Throws UserError on all ranks if one fails.
void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const SharedFolder& folder, const LossCoefficients& coefficients = {});

// Writes a checkpoint and commits it: `out` is complete or absent. Rank 0 calls `add_files` with
// the folder before. A collective of `ranks`.
void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force, distributed::Comm& ranks,
                 const LossCoefficients& coefficients = {},
                 const std::function<void(const std::filesystem::path&)>& add_files = {});

}  // namespace moe::model
