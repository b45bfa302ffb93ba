#include <algorithm>
#include <string>
#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/loop/plan.h"
#include "core/train/step/gradients.h"
#include "core/train/step/trainable.h"

namespace moe::train {
namespace {

constexpr int64_t kF32 = 4;
// Growth of a process in its first step: pages of LibTorch's code and tables, threads.
constexpr uint64_t kFirstStep = uint64_t{30} << 20;

struct Sizes {
  int64_t tokens;      // T
  int64_t width;       // D
  int64_t heads;       // H A
  int64_t keys;        // G A
  int64_t activation;  // bytes of an operand of a product
  int64_t normed;      // elements of normed queries and keys per token, or 0
  int64_t head_dim;    // A
};

// Returns the bytes that attention keeps for backward: input, normed input, queries, keys, values
// and output; with normed queries and keys also their inputs in f32 and a scale per head.
int64_t attention_bytes(const Sizes& s) {
  return kF32 * s.tokens * s.width + s.activation * s.tokens * s.width +
         s.activation * s.tokens * (2 * s.heads + 2 * s.keys) +
         kF32 * s.tokens * (s.normed + s.normed / s.head_dim);
}

struct FeedForwardBytes {
  int64_t kept = 0;
  int64_t backward = 0;  // in addition to `kept`
};

// Returns the bytes of a feed-forward of width F = `inner` on R = `rows` rows (T of a dense one).
FeedForwardBytes feed_forward_bytes(const Sizes& s, int64_t inner, int64_t rows, int64_t experts,
                                    bool has_adapters) {
  FeedForwardBytes bytes;
  bytes.kept = kF32 * s.tokens * s.width + s.activation * s.tokens * s.width +
               s.activation * rows * 2 * inner;
  bytes.backward = s.activation * rows * 4 * inner + (kF32 + s.activation) * rows * s.width;
  if (has_adapters) {
    bytes.kept += s.activation * rows * inner;
    bytes.backward += s.activation * rows * 2 * inner;
  }
  if (experts > 1) {
    // Permuted rows and expert outputs; logits, scores, counts and gate weights.
    constexpr int64_t kRouting = 48;
    bytes.kept += 2 * s.activation * rows * s.width + kRouting * s.tokens * experts;
    bytes.backward += 2 * s.activation * rows * s.width;
  }
  return bytes;
}

// Adds the bytes of a shared expert. Forward keeps gate and up, the output and the expert's gate.
// Backward allocates their gradients and the product of gate and up.
void add_shared_expert(const Sizes& s, int64_t inner, bool has_adapters, FeedForwardBytes& bytes) {
  if (inner == 0) {
    return;
  }
  bytes.kept += s.activation * s.tokens * (2 * inner + s.width) + kF32 * s.tokens;
  bytes.backward = std::max(bytes.backward, s.activation * s.tokens * 4 * inner +
                                                (kF32 + s.activation) * s.tokens * s.width);
  if (has_adapters) {
    bytes.kept += s.activation * s.tokens * inner;
  }
}

// Number of parameters of one process: `whole` while matrices are gathered for use, `kept` between
// uses. Both are equal if weights are not sharded.
struct ParameterCount {
  int64_t whole = 0, kept = 0;
  ParameterCount& operator+=(const ParameterCount& other) {
    whole += other.whole;
    kept += other.kept;
    return *this;
  }
};

// A layer, the embedding or the head.
struct Unit {
  ParameterCount trained;  // parameters that train
  int64_t gathered = 0;    // bytes that are gathered for its use; 0 if weights are not sharded
};

// Parameter counts of a model, by use.
struct TrainedCounts {
  std::vector<Unit> layers;
  Unit embedding, head;
  ParameterCount all;      // all parameters, adapters included
  ParameterCount trained;  // that train
  int64_t updated = 0;     // elements that this process updates (step/optimizer.h)
  int64_t largest = 0;     // largest parameter that several processes hold
  int64_t copied = 0;      // elements with a bf16 copy

  // Returns the unit of a parameter.
  Unit& unit(const std::string& name) {
    const int64_t layer = layer_index(name);
    return layer >= 0 ? layers[layer] : name == "lm_head" ? head : embedding;
  }
};

TrainedCounts count_trained(const model::ModelConfig& config, const TrainSettings& settings,
                            const distributed::Layout& layout) {
  model::Llama shapes = model::Llama::without_weights(config, layout);
  shapes.add_lora(settings.lora, 0);
  const bool is_sharded = settings.shard == Shard::kWeights && layout.processes > 1;
  TrainedCounts counts;
  counts.layers.resize(config.layers);
  const auto is_part = [&](const model::NamedParameter& parameter) {
    return is_sharded && parameter.is_dense_matrix;
  };
  const auto held = [&](const model::NamedParameter& parameter) {
    const int64_t whole = parameter.tensor.numel();
    const int64_t part = (whole + layout.processes - 1) / layout.processes;
    return ParameterCount{whole, is_part(parameter) ? part : whole};
  };
  for (const auto& parameter : shapes.parameters()) {
    counts.all += held(parameter);
    if (is_part(parameter)) {
      counts.unit(parameter.name).gathered +=
          parameter.tensor.numel() * (is_gathered_in_bf16(parameter, settings) ? 2 : kF32);
    }
  }
  for (const auto& parameter : trainable(shapes, settings.trained)) {
    const int64_t numbers = parameter.tensor.numel();
    const int64_t holders = parameter.is_expert ? layout.replicas : layout.processes;
    counts.trained += held(parameter);
    counts.unit(parameter.name).trained += held(parameter);
    counts.copied +=
        !is_part(parameter) && has_bf16_copy(parameter, config, settings) ? numbers : 0;
    counts.updated += (numbers + holders - 1) / holders;
    counts.largest = std::max(counts.largest, holders > 1 ? numbers : 0);
  }
  return counts;
}

// Returns the number of logits of a block of the head (step/gradients.h).
int64_t max_logits(const model::ModelConfig& config, int64_t tokens, bool on_cuda) {
  return std::min(head_block_rows(config.vocab_size, on_cuda), tokens) * config.vocab_size;
}

// Returns the rows R that a MoE layer routes for `tokens` tokens; for top-p and ReLU routers the
// expectation at initialization, their maximum. A GPU reserves a row for each token of IR.
int64_t routed_rows(const route::RouterSettings& router, int64_t tokens, int64_t experts,
                    bool on_cuda) {
  const double rows = router.family->expected_rows_at_init(router, tokens, experts) +
                      (on_cuda && router.ir ? tokens : 0);
  return static_cast<int64_t>(std::min(rows, static_cast<double>(tokens * experts)));
}

// Maximum of the allocated bytes during a step, without weights, moments and program.
class StepWalk {
 public:
  StepWalk(const model::ModelConfig& config, const TrainSettings& settings,
           const route::RouterSettings& router, int64_t tokens, const TrainedCounts& trained,
           const distributed::Layout& layout)
      : config_(config),
        trained_(trained),
        recompute_(settings.compute.recompute),
        on_cuda_(settings.on_cuda) {
    const bool bf16 = settings.compute.precision == model::Precision::kBf16;
    const int64_t local_tokens = (tokens + layout.group() - 1) / layout.group();
    sizes_ = {local_tokens,
              config.hidden_size,
              config.heads * config.head_dim,
              config.kv_heads * config.head_dim,
              bf16 ? 2 : kF32,
              config.qk_norm ? (config.heads + config.kv_heads) * config.head_dim : 0,
              config.head_dim};
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const bool is_moe = config.is_moe_layer(layer);
      layers_.push_back(feed_forward_bytes(
          sizes_, is_moe ? config.moe->expert_width : config.intermediate_size,
          is_moe ? routed_rows(router, local_tokens, config.moe->experts, settings.on_cuda)
                 : local_tokens,
          is_moe ? config.moe->experts : 1, settings.lora.is_on("ffn")));
      add_shared_expert(sizes_, is_moe ? config.moe->shared_expert_width : 0,
                        settings.lora.is_on("ffn"), layers_.back());
    }
    const bool accumulates = *settings.global_batch > *settings.micro_batch * layout.replicas;
    walk(accumulates ? kF32 * trained.trained.kept : 0);
  }

  int64_t max_bytes() const { return max_bytes_; }
  int64_t activations() const { return activations_; }

 private:
  int64_t kept_bytes(size_t layer) const {
    const int64_t input = kF32 * sizes_.tokens * sizes_.width;
    return recompute_ == model::Recompute::kLayer
               ? input
               : attention_bytes(sizes_) +
                     (recompute_ == model::Recompute::kNone ? layers_[layer].kept : input);
  }

  // Returns the temporary bytes of a layer's backward.
  int64_t working(size_t layer) const {
    const int64_t whole = attention_bytes(sizes_) + layers_[layer].kept;
    return layers_[layer].backward + (whole - kept_bytes(layer)) +
           2 * kF32 * sizes_.tokens * sizes_.width;
  }

  void update_max(int64_t bytes) { max_bytes_ = std::max(max_bytes_, bytes); }

  void walk(int64_t gradients) {
    const int64_t row = kF32 * sizes_.tokens * sizes_.width;
    const int64_t logits = kF32 * max_logits(config_, sizes_.tokens, on_cuda_);
    int64_t allocated = 2 * row + gradients;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      allocated += kept_bytes(layer);
      activations_ += kept_bytes(layer);
    }
    const bool is_new = gradients == 0;  // otherwise gradients are accumulated
    const bool is_tied = config_.tie_word_embeddings;
    Unit head = is_tied ? trained_.embedding : trained_.head;
    if (is_tied) {  // its gradient stays whole until backward is complete
      head.trained.kept = head.trained.whole;
    }
    update_max(allocated + new_bytes(head.trained, is_new) + 2 * row + logits + head.gathered +
               trained_.layers.back().gathered);
    allocated += (is_new ? kF32 * head.trained.kept : 0) + 2 * row;
    for (size_t layer = layers_.size(); layer-- > 0;) {
      const auto& [own, gathered] = trained_.layers[layer];
      const int64_t prefetched = layer > 0 ? trained_.layers[layer - 1].gathered : 0;
      update_max(allocated + kF32 * own.whole + working(layer) + gathered + prefetched);
      allocated += (is_new ? kF32 * own.kept : 0) - kept_bytes(layer);
    }
    update_max(allocated + kF32 * trained_.embedding.trained.whole);
  }

  // Returns the bytes allocated for the head's gradient in a micro-batch: none if weights are not
  // sharded and it is added in place to that of earlier micro-batches.
  static int64_t new_bytes(const ParameterCount& head, bool is_new) {
    return is_new || head.whole != head.kept ? kF32 * head.whole : 0;
  }

  const model::ModelConfig& config_;
  const TrainedCounts& trained_;
  model::Recompute recompute_;
  bool on_cuda_;
  Sizes sizes_ = {};
  std::vector<FeedForwardBytes> layers_;
  int64_t max_bytes_ = 0, activations_ = 0;
};

}  // namespace

MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout) {
  const TrainedCounts trained = count_trained(config, settings, layout);
  const StepWalk step(config, settings, router, tokens, trained, layout);
  MemoryPlan plan;
  plan.program = program + kFirstStep;
  plan.weights = kF32 * trained.all.kept + 2 * trained.copied;
  plan.gradients = kF32 * trained.trained.kept;
  const int64_t moment_bytes = io::dtype_bytes(settings.adamw.moments);
  plan.optimizer = 2 * moment_bytes * trained.updated;
  plan.activations = step.activations();
  if ((settings.save_every || settings.save_minutes) && !settings.on_cuda) {
    const bool merges = settings.lora.rank > 0;
    plan.checkpoint = plan.weights * (merges ? 2 : 1) + plan.optimizer;
  }
  if (settings.evaluation.any() && layout.group() > 1) {  // the whole model is gathered
    plan.evaluation = kF32 * count_trained(config, settings, {}).all.whole;
  }
  // RankShards::reduce_gradients() copies one parameter at a time.
  const uint64_t summing = plan.gradients + kF32 * trained.largest;
  const auto step_bytes = std::max(static_cast<uint64_t>(step.max_bytes()), summing);
  plan.workspace = step_bytes - std::min(step_bytes, plan.gradients + plan.activations);
  const int64_t forward = max_logits(config, tokens, settings.on_cuda) +
                          4 * tokens * config.hidden_size;  // elements, of held-out rows
  const uint64_t evaluating =
      plan.evaluation == 0 ? 0 : plan.gradients + plan.evaluation + kF32 * forward;
  const uint64_t above = std::max(step_bytes + plan.checkpoint, evaluating);
  plan.peak = plan.program + plan.weights + plan.optimizer + above;
  return plan;
}

}  // namespace moe::train
