#include <algorithm>
#include <string>
#include <vector>

#include "core/model/llama/llama.h"
#include "core/train/loop/plan.h"
#include "core/train/step/gradients.h"
#include "core/train/step/optimizer.h"

namespace moe::train {
namespace {

constexpr int64_t kF32 = 4;
// Growth of a process in its first step: pages of LibTorch's code and tables, threads.
constexpr uint64_t kFirstStep = uint64_t{30} << 20;

struct Sizes {
  int64_t tokens;       // T
  int64_t width;        // D
  int64_t query_width;  // H A
  int64_t key_width;    // G A
  int64_t activation;   // bytes of an operand of a product
  int64_t normed;       // elements of normed queries and keys per token, or 0
  int64_t head_dim;     // A
};

// Returns the bytes that attention keeps for backward: input, normed input, queries, keys, values
// and output; with normed queries and keys also their inputs in f32 and a scale per head.
int64_t attention_bytes(const Sizes& s) {
  return kF32 * s.tokens * s.width + s.activation * s.tokens * s.width +
         s.activation * s.tokens * (2 * s.query_width + 2 * s.key_width) +
         kF32 * s.tokens * (s.normed + s.normed / s.head_dim);
}

// Returns the rows R that a MoE layer routes for `tokens` tokens; for top-p and ReLU routers the
// expectation at initialization. A GPU reserves a row for each token of IR.
int64_t routed_rows(const route::RouterSettings& router, int64_t tokens, int64_t experts,
                    bool on_cuda) {
  const double rows = router.family->expected_rows_at_init(router, tokens, experts) +
                      (on_cuda && router.ir ? tokens : 0);
  return static_cast<int64_t>(std::min(rows, static_cast<double>(tokens * experts)));
}

struct FeedForwardBytes {
  int64_t kept = 0;      // for backward
  int64_t backward = 0;  // allocated by backward, in addition to `kept`
};

FeedForwardBytes feed_forward_bytes(const Sizes& s, const model::ModelConfig& config, int64_t layer,
                                    const TrainSettings& settings,
                                    const route::RouterSettings& router) {
  const bool is_moe = config.is_moe_layer(layer);
  const int64_t experts = is_moe ? config.moe->experts : 1;
  const int64_t rows =
      is_moe ? routed_rows(router, s.tokens, experts, settings.on_cuda) : s.tokens;  // R
  const int64_t product_bytes =                                                      // of [R, F]
      s.activation * rows * (is_moe ? config.moe->expert_width : config.intermediate_size);
  const int64_t num_adapters = settings.lora.is_on("ffn") ? 1 : 0;
  FeedForwardBytes bytes;
  bytes.kept = (kF32 + s.activation) * s.tokens * s.width + (2 + num_adapters) * product_bytes;
  bytes.backward = (4 + 2 * num_adapters) * product_bytes + (kF32 + s.activation) * rows * s.width;
  if (experts > 1) {
    // Permuted rows and expert outputs; logits, scores, counts and gate weights.
    constexpr int64_t kRouting = 48;
    bytes.kept += 2 * s.activation * rows * s.width + kRouting * s.tokens * experts;
    bytes.backward += 2 * s.activation * rows * s.width;
  }
  if (is_moe && config.moe->shared_expert_width > 0) {
    // Forward keeps gate and up, the output and the expert's gate. Backward allocates their
    // gradients and the product of gate and up.
    const int64_t shared_bytes = s.activation * s.tokens * config.moe->shared_expert_width;
    bytes.kept +=
        (2 + num_adapters) * shared_bytes + s.activation * s.tokens * s.width + kF32 * s.tokens;
    bytes.backward =
        std::max(bytes.backward, 4 * shared_bytes + (kF32 + s.activation) * s.tokens * s.width);
  }
  return bytes;
}

// Number of parameters of one process: `whole` while sharded matrices are gathered for use, `kept`
// between uses.
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
  ParameterCount all;      // adapters included
  ParameterCount trained;  // parameters that train
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

// Bytes allocated during a step, without weights, moments and program.
struct StepBytes {
  int64_t max = 0;
  int64_t activations = 0;  // kept for backward by all layers
};

StepBytes simulate_step(const model::ModelConfig& config, const TrainSettings& settings,
                        const route::RouterSettings& router, int64_t tokens,
                        const TrainedCounts& counts, const distributed::Layout& layout) {
  const Sizes sizes = {(tokens + layout.group() - 1) / layout.group(),
                       config.hidden_size,
                       config.heads * config.head_dim,
                       config.kv_heads * config.head_dim,
                       settings.compute.precision == model::Precision::kBf16 ? 2 : kF32,
                       config.qk_norm ? (config.heads + config.kv_heads) * config.head_dim : 0,
                       config.head_dim};
  const int64_t hidden = kF32 * sizes.tokens * sizes.width;  // bytes of hidden states [T, D]
  StepBytes step;
  std::vector<int64_t> kept, working;  // per layer: kept for backward, temporary in backward
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const auto feed_forward = feed_forward_bytes(sizes, config, layer, settings, router);
    const int64_t attention = attention_bytes(sizes), whole = attention + feed_forward.kept;
    kept.push_back(settings.compute.recompute == model::Recompute::kLayer  ? hidden
                   : settings.compute.recompute == model::Recompute::kNone ? whole
                                                                           : attention + hidden);
    working.push_back(feed_forward.backward + (whole - kept.back()) + 2 * hidden);
    step.activations += kept.back();
  }
  const bool accumulates = *settings.global_batch > *settings.micro_batch * layout.replicas;
  int64_t allocated =
      2 * hidden + step.activations + (accumulates ? kF32 * counts.trained.kept : 0);
  const bool is_tied = config.tie_word_embeddings;
  Unit head = is_tied ? counts.embedding : counts.head;
  if (is_tied) {  // its gradient stays whole until backward is complete
    head.trained.kept = head.trained.whole;
  }
  // A gradient that is not sharded is added in place to that of earlier micro-batches.
  const bool is_head_added = accumulates && head.trained.whole == head.trained.kept;
  step.max = allocated + (is_head_added ? 0 : kF32 * head.trained.whole) + 2 * hidden +
             kF32 * max_logits(config, sizes.tokens, settings.on_cuda) + head.gathered +
             counts.layers.back().gathered;
  allocated += (accumulates ? 0 : kF32 * head.trained.kept) + 2 * hidden;
  for (size_t layer = kept.size(); layer-- > 0;) {
    const auto& [trained, gathered] = counts.layers[layer];
    const int64_t prefetched = layer > 0 ? counts.layers[layer - 1].gathered : 0;
    step.max = std::max(step.max,
                        allocated + kF32 * trained.whole + working[layer] + gathered + prefetched);
    allocated += (accumulates ? 0 : kF32 * trained.kept) - kept[layer];
  }
  step.max = std::max(step.max, allocated + kF32 * counts.embedding.trained.whole);
  return step;
}

}  // namespace

MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout) {
  const TrainedCounts counts = count_trained(config, settings, layout);
  const StepBytes step = simulate_step(config, settings, router, tokens, counts, layout);
  MemoryPlan plan;
  plan.program = program + kFirstStep;
  plan.weights = kF32 * counts.all.kept + 2 * counts.copied;
  plan.gradients = kF32 * counts.trained.kept;
  const int64_t moment_bytes = io::dtype_bytes(settings.adamw.moments);
  plan.optimizer = 2 * moment_bytes * counts.updated;
  plan.activations = step.activations;
  if ((settings.save_every || settings.save_minutes) && !settings.on_cuda) {
    const int num_copies = settings.lora.rank > 0 ? 2 : 1;  // adapters are merged into a copy
    plan.checkpoint = plan.weights * num_copies + plan.optimizer;
  }
  if (settings.evaluation.any() && layout.group() > 1) {  // the whole model is gathered
    plan.evaluation = kF32 * count_trained(config, settings, {}).all.whole;
  }
  // Updater::reduce_gradients() copies one parameter at a time.
  const auto step_bytes =
      std::max(static_cast<uint64_t>(step.max), plan.gradients + kF32 * counts.largest);
  plan.workspace = step_bytes - std::min(step_bytes, plan.gradients + plan.activations);
  const int64_t forward = max_logits(config, tokens, settings.on_cuda) +
                          4 * tokens * config.hidden_size;  // elements, of held-out rows
  const uint64_t evaluation_bytes =
      plan.evaluation == 0 ? 0 : plan.gradients + plan.evaluation + kF32 * forward;
  plan.peak = plan.program + plan.weights + plan.optimizer +
              std::max(step_bytes + plan.checkpoint, evaluation_bytes);
  return plan;
}

}  // namespace moe::train
