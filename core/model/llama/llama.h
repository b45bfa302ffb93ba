#pragma once
// The whole model: embedding, layers of attention and feed-forward (dense or MoE), final norm,
// head, as transformers computes it. Sequences come packed, [T] tokens with their lengths, so there
// is no padding anywhere inside.

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/distributed/comm.h"
#include "core/io/checkpoint.h"
#include "core/io/staged_folder.h"
#include "core/model/config/config.h"
#include "core/model/convert/folder_tensors.h"
#include "core/model/llama/attention.h"
#include "core/model/llama/compute.h"
#include "core/model/llama/gpu_attention.h"
#include "core/model/llama/kv_cache.h"
#include "core/model/llama/lora.h"
#include "core/model/moe/layer.h"

namespace moe::model {

// T = sum(lengths) tokens; sequence i is the next lengths[i] of them; attention is causal within a
// sequence and positions start at 0 (plus what a cache holds).
struct Packed {
  at::Tensor ids;                // [T] i64
  std::vector<int64_t> lengths;  // all positive
  // Empty, or a number for each sequence: the index of the earlier sequence that it continues, -1
  // for none. It then attends to all of that one, and its positions count on from there, so that
  // several answers to one question compute the question once.
  std::vector<int64_t> continues = {};
  // Empty, or one for each sequence: its tokens come behind those in the cache and are added to it.
  // `continues` is then empty.
  std::vector<KvCache*> caches = {};
  // Undefined, or [N] i64, increasing: the tokens whose hidden states are asked for. A dense last
  // layer then computes nothing behind its attention for the others. For inference alone.
  at::Tensor output_rows = {};
};

// What routing needs besides the weights. By default the folder's own.
struct RoutingOptions {
  route::RouterSettings router;
  int64_t ep_ranks = 1;       // W; tokens of one forward go to them in equal parts. A multiple of G
  bool count_tokens = false;  // also say what each token got (ForwardResult::token_rows)
  std::optional<double> gate_scale = {};  // in place of the folder's
  // Losses besides those of the router (core/route/losses.h).
  bool wants_z_loss = false, wants_sequence_balance = false;
};

// Of the tokens of this process alone. Under expert parallelism the backward of a forward is a
// collective too: every process of the group calls it from `hidden`, also with no tokens (its
// gradient is then [0, D]), and from the same losses.
struct ForwardResult {
  at::Tensor hidden;  // [T, D] f32 after the final norm; [N, D] of Packed::output_rows
  // Summed over MoE layers. Under expert parallelism: the part of this process, so that the sum
  // over the group is the mean over all logical ranks that hold tokens.
  route::AuxLosses losses;
  std::vector<route::Counters>
      counters;  // one a MoE layer, in layer order; to be summed over ranks
  std::vector<at::Tensor>
      token_rows;  // the same, [T, 3 + E] i64 each (route::rows_of_tokens), if asked
};

// Called in every layer with its number and the normed input of its feed-forward [T, D].
using OnFeedForward = std::function<void(int64_t layer, const at::Tensor& input)>;

struct NamedParameter {
  std::string name;   // "model.layers.0.mlp.gate_up" and the like; norms have "norm" in it,
                      // adapters end with ".lora_a" or ".lora_b"
  at::Tensor tensor;  // f32 leaf
  // Of the experts of a MoE layer: dimension 0 counts those of this process, from
  // layout().first_expert(). All others are whole on every process.
  bool is_expert = false;
  // Embedding, head, attention, dense feed-forward and shared experts: what is sharded on request.
  // Routers, norms, biases and adapters, a thousandth of a model or less, stay whole.
  bool is_dense_matrix = false;
  // Of a matrix that is sharded (Llama::load): `tensor` has values only while its layer runs, and
  // these are those of this process, [n] from element `shard_begin` on, with their gradient. All
  // processes together hold each once.
  at::Tensor shard = {};
  int64_t shard_begin = 0;
};

// How a model lies in memory.
enum class Storage {
  kF32,     // all in f32: it can be trained
  kStored,  // matrices in the type that the folder stores: for inference. On a CPU they are its
            // mapped files: a page is read when a product needs it, and the system may drop it
            // again, so a model may be larger than memory. On a GPU they are copied there, rounded
            // to bf16 where products are in bf16, which changes no product
};

class Llama {
 public:
  // Loads a checked folder (weights stored as bf16 or f16 are widened, but see Storage) on
  // `device`, where all is computed and kept then. Of the experts only those of `layout`'s rank,
  // and no others are read. The checkpoint need not outlive it. `compute`: as set_compute();
  // kStored on a GPU keeps what this precision needs. With `sharded_over`, which outlives the model
  // and its clones, each of its ranks keeps a part of every dense matrix (weight_shards.h), and no
  // others are read; forward, backward and head are then collectives of it, whose ranks all make
  // them equally often.
  static Llama load(const io::Checkpoint& checkpoint, const distributed::Layout& layout = {},
                    at::Device device = at::kCPU, Storage storage = Storage::kF32,
                    const ComputeOptions& compute = {}, distributed::Comm* sharded_over = nullptr);
  // Names and shapes of a model and no memory: its tensors lie on LibTorch's meta device.
  static Llama without_weights(const ModelConfig& config, const distributed::Layout& layout = {});
  Llama clone() const;                      // f32 weights of its own, without gradients
  Llama clone_to(at::Device device) const;  // the same on another device
  Llama merged() const;                     // a clone whose adapters are added to its weights
  ~Llama();
  Llama(Llama&&) noexcept;
  Llama& operator=(Llama&&) noexcept;

  const ModelConfig& config() const;
  const distributed::Layout& layout() const;  // which experts are here
  at::Device device() const;                  // of all weights
  uint64_t mapped_bytes()
      const;  // of matrices that lie in mapped files; 0 but for kStored on a CPU
  // The processes that hold the other experts; forward and backward are then collectives of it. It
  // outlives them, and clones keep it. nullptr: none, for a model that is whole.
  void set_group(distributed::Comm* group);
  // Of the forwards that follow; by default {}. TF32 is then allowed in all of the process:
  // LibTorch has no finer switch.
  void set_compute(const ComputeOptions& compute);
  const ComputeOptions& compute() const;
  // Gives the matrices that `settings` names adapters, which change nothing until they are trained.
  void add_lora(const LoraSettings& settings, uint64_t seed);
  const LoraSettings& lora() const;  // rank 0: no adapters
  // Gives every router a bias of zeros, or takes it away; one that is there stays as it is. A
  // folder whose router has one comes with it.
  void set_router_bias(bool has_bias);
  std::vector<at::Tensor> router_biases() const;  // [E] f32, one a MoE layer, or none at all
  RoutingOptions default_routing() const;         // the folder's router and ep_ranks

  // `cache`, when given, is extended in place; all lengths must then be equal.
  ForwardResult forward(const Packed& tokens, const RoutingOptions& routing,
                        const OnFeedForward& on_feed_forward = {}) const;
  at::Tensor head(const at::Tensor& hidden) const;  // [N, D] -> logits [N, V] f32
  // Calls `body` with the head's matrix [V, D], the embedding's where tied. Where weights are
  // sharded it is whole for that long alone, and what `body` adds to its gradient is summed up.
  void with_head(const std::function<void(const at::Tensor& weight)>& body) const;
  at::ScalarType product_type() const;  // of operands: f32 or bf16

  // Every trainable tensor once; tied heads appear once. Only of Storage::kF32.
  std::vector<NamedParameter> parameters() const;
  void require_gradients();
  bool is_sharded() const;
  // To be called after every backward of a sharded model; of another one it does nothing.
  void finish_backward() const;
  // A parameter's values, sharded or not: a collective where it is.
  at::Tensor gathered(const NamedParameter& parameter) const;
  // The tensors of the folder form without adapters: Hugging Face names, stored dtype of
  // config().dtype; all of them, those of other processes undefined. The form depends on
  // the router: written_form().
  std::vector<FolderTensor> folder_tensors(const RoutingOptions& routing) const;
  // Of a whole model, ready for io::write_tensors.
  std::vector<io::TensorSource> tensor_sources(const RoutingOptions& routing) const;

 private:
  struct Weights;
  Llama();
  std::unique_ptr<Weights> weights_;
};

// What a run multiplied its auxiliary losses by, for the folder to store. Empty: as it was.
struct LossCoefficients {
  std::optional<double> load_balance = {}, entropy = {};
  std::optional<double> lambda = {};  // ReLU: of the step that comes next
  std::optional<double> z = {}, sequence_balance = {};
};

// Writes a folder's files into `folder`: config.json (with the router and ep_ranks of `routing` and
// the coefficients, other keys of `parent` kept), tensors with adapters merged, tokenizer files of
// `parent`. The caller may add files and commits.
void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const io::StagedFolder& folder, const LossCoefficients& coefficients = {});

// The same by all ranks of a run at once: every one writes what it alone holds, and its part of
// what many hold. The bytes are those that one process writes. A collective of folder.ranks(); the
// caller may add files and commits. UserError on all ranks when one fails.
void write_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                  const SharedFolder& folder, const LossCoefficients& coefficients = {});

// write_folder into a StagedFolder of its own, committed: OUT exists whole or not at all.
void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force,
                 const LossCoefficients& coefficients = {});

// The same by all ranks of a run.
void save_folder(const Llama& model, const RoutingOptions& routing, const io::Checkpoint& parent,
                 const std::filesystem::path& out, bool force, distributed::Comm& ranks,
                 const LossCoefficients& coefficients = {});

}  // namespace moe::model
