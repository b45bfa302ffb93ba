#include "core/train/plan/cluster_plan.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/model/config/weights.h"
#include "core/model/convert/init.h"
#include "core/model/convert/upcycle.h"
#include "core/model/llama/llama.h"
#include "core/route/router_override.h"
#include "core/train/loop/trainable.h"
#include "core/train/plan/known_failures.h"
#include "core/train/plan/run_plan.h"

namespace moe::train {

namespace {

constexpr double kF32Bytes = 4, kBf16Bytes = 2;  // bytes

model::ModelConfig read_config(const std::filesystem::path& model) {
  const auto file =
      std::filesystem::is_directory(model) ? model / "config.json" : std::filesystem::path(model);
  return model::parse_config(read_json(file.string(), uint64_t{16} << 20), file.string());
}

model::ModelConfig planned_config(const TrainSettings& settings) {
  model::InitSettings init;
  init.config = settings.model;
  init.experts = *settings.upcycle.experts;
  init.layers = settings.upcycle.layers;
  init.granularity = settings.upcycle.granularity;
  init.router = model::upcycled_router(settings.router);
  init.ep_ranks = settings.router.ep_ranks;
  model::ModelConfig config = model::plan_init(init).config;
  if (settings.upcycle.shared_expert) {
    model::check_may_share(read_config(settings.model), settings.model.string());
    config.moe->shared_expert_width = config.intermediate_size;
  }
  return config;
}

// The router of the run: of a planned mixture its own, of a config what the run makes of it.
route::ResolvedRouter planned_router(const TrainSettings& settings, const model::MoeConfig& moe) {
  return route::override_router({moe.router, moe.ep_ranks, moe.experts, moe.gate_scale},
                                model::router_of_opened(settings.upcycle, settings.router),
                                /*force=*/true, route::Purpose::kTrain);
}

void check_rates(const ClusterRates& rates) {
  for (const auto& [flag, value] :
       {std::pair("--nodes", static_cast<double>(rates.nodes)),
        std::pair("--gpus", static_cast<double>(rates.gpus)),
        std::pair("--gpu-tflops", rates.tflops), std::pair("--link-gbs", rates.link_gbs),
        std::pair("--network-gbs", rates.network_gbs)}) {
    if (!(value > 0)) {
      throw UserError("{} {}: must be positive", flag, value);
    }
  }
}

// FLOP of a forward over `tokens` tokens, of one GPU.
double forward_flop(const model::ModelConfig& config, const ClusterPlan& plan, double tokens,
                    double seq_len) {
  const auto width = static_cast<double>(config.hidden_size);
  const auto heads = static_cast<double>(config.heads * config.head_dim);
  const auto keys = static_cast<double>(config.kv_heads * config.head_dim);
  double weights = width * static_cast<double>(config.vocab_size);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    weights += width * (2 * heads + 2 * keys) + seq_len * heads;  // causal: half of all pairs
    if (config.is_moe_layer(layer)) {
      const int64_t experts = config.moe->experts;
      const auto rows =
          static_cast<double>(routed_rows(plan.router, static_cast<int64_t>(tokens), experts));
      weights += rows / tokens * 3 * width * static_cast<double>(config.moe->expert_width) +
                 width * static_cast<double>(experts);
      if (const int64_t shared = config.moe->shared_expert_width; shared > 0) {
        weights += 3 * width * static_cast<double>(shared) + width;
      }
    } else {
      weights += 3 * width * static_cast<double>(config.intermediate_size);
    }
  }
  return 2 * tokens * weights;
}

// Rows that one GPU sends to experts elsewhere, of `tokens` tokens in one layer.
double rows_away(const ClusterPlan& plan, const model::MoeConfig& moe, double tokens) {
  const double elsewhere = 1 - 1 / static_cast<double>(plan.layout.group());
  const double rows = route::has_capacity(plan.router)
                          ? *plan.router.capacity_factor * tokens
                          : static_cast<double>(routed_rows(
                                plan.router, static_cast<int64_t>(tokens), moe.experts));
  return rows * elsewhere;
}

// Seconds for `bytes` to `peers` other GPUs that stand `stride` apart, the first in this node.
double seconds_to(double bytes, int64_t peers, int64_t stride, const ClusterRates& rates) {
  if (peers <= 0) {
    return 0;
  }
  const int64_t near = std::min(peers, (rates.gpus - 1) / stride);
  const double share = static_cast<double>(near) / static_cast<double>(peers);
  return bytes * share / (rates.link_gbs * 1e9) + bytes * (1 - share) / (rates.network_gbs * 1e9);
}

// A ring goes at the rate of its slowest link.
double ring_seconds(double bytes, int64_t holders, int64_t stride, const ClusterRates& rates) {
  const bool is_near = (holders - 1) * stride < rates.gpus;
  return bytes / ((is_near ? rates.link_gbs : rates.network_gbs) * 1e9);
}

// What gradients and weights cost, of `batches` micro-batches a replica.
void add_gradients(ClusterPlan& plan, const model::ModelConfig& config, double batches,
                   const ClusterRates& rates) {
  const bool shards = plan.settings.shard == Shard::kWeights && plan.layout.processes > 1;
  double dense = 0, experts = 0, sharded = 0, gathered = 0;  // numbers, but gathered bytes
  for (const auto& parameter : model::Llama::without_weights(config, plan.layout).parameters()) {
    const auto numbers = static_cast<double>(parameter.tensor.numel());
    if (!shards || !parameter.is_dense_matrix) {
      (parameter.is_expert ? experts : dense) += numbers;
      continue;
    }
    sharded += numbers;
    const bool is_looked_up = parameter.name == "model.embed_tokens";
    const bool comes_twice = layer_of(parameter.name) >= 0 ||
                             (is_looked_up && config.tie_word_embeddings);  // also as the head
    gathered += (comes_twice ? 2 : 1) * numbers *
                (is_gathered_in_bf16(parameter, plan.settings) ? kBf16Bytes : kF32Bytes);
  }
  const auto one_way = [](double bytes, int64_t holders) {
    const auto n = static_cast<double>(holders);
    return bytes * (n - 1) / n;
  };
  const int64_t processes = plan.layout.processes;
  const double dense_bytes =
      one_way(2 * kF32Bytes * dense, processes) + one_way(batches * kF32Bytes * sharded, processes);
  const double expert_bytes = one_way(2 * kF32Bytes * experts, plan.layout.replicas);
  plan.gradient_bytes = dense_bytes + expert_bytes;
  plan.gradient_s = ring_seconds(dense_bytes, processes, 1, rates) +
                    ring_seconds(expert_bytes, plan.layout.replicas, plan.layout.group(), rates);
  plan.weight_bytes = one_way(batches * gathered, processes);
  plan.weight_s = ring_seconds(plan.weight_bytes, processes, 1, rates);
  plan.waiting_s = std::max(0.0, plan.weight_s - plan.compute_s);
}

}  // namespace

ClusterPlan plan_cluster(const TrainSettings& settings, const ClusterRates& rates) {
  check_rates(rates);
  model::check_request(settings.upcycle);
  const model::ModelConfig config =
      settings.upcycle.experts ? planned_config(settings) : read_config(settings.model);
  ClusterPlan plan;
  plan.settings = settings;
  plan.settings.on_cuda = true;
  plan.settings = resolve(plan.settings, config, {});
  int64_t logical_ranks = 1;
  if (config.moe) {
    const auto resolved = planned_router(settings, *config.moe);
    plan.router = resolved.router;
    logical_ranks = resolved.ep_ranks;
  }
  plan.layout = distributed::make_layout(rates.nodes * rates.gpus, 0, settings.replicas,
                                         logical_ranks, config.moe ? config.moe->experts : 0);
  plan.settings.global_batch =
      settings.global_batch.value_or(*plan.settings.micro_batch * plan.layout.replicas);
  check_batches(plan.settings, plan.layout);
  const int64_t micro_tokens = *plan.settings.micro_batch * *plan.settings.seq_len;
  plan.parameters = model::count_parameters(config).total;
  plan.tokens = *plan.settings.global_batch * *plan.settings.seq_len;
  plan.memory =
      plan_memory(config, plan.settings, plan.router, micro_tokens, kCudaProgram, plan.layout);

  const double local_tokens =
      static_cast<double>(micro_tokens) / static_cast<double>(plan.layout.group());
  const double batches = static_cast<double>(*plan.settings.global_batch) /
                         static_cast<double>(*plan.settings.micro_batch * plan.layout.replicas);
  const bool again = plan.settings.compute.recompute != model::Recompute::kNone;
  plan.flop = batches * (again ? 4 : 3) *
              forward_flop(config, plan, local_tokens, static_cast<double>(*plan.settings.seq_len));
  plan.compute_s = plan.flop / (rates.tflops * 1e12);
  if (config.moe) {
    const bool bf16 = plan.settings.compute.precision == model::Precision::kBf16;
    const double transfers = (again ? 6.0 : 4.0) * static_cast<double>(config.moe->layers.size());
    plan.token_bytes = batches * transfers * rows_away(plan, *config.moe, local_tokens) *
                       static_cast<double>(config.hidden_size) * (bf16 ? 2 : kF32Bytes);
    plan.token_s = seconds_to(plan.token_bytes, plan.layout.group() - 1, 1, rates);
  }
  add_gradients(plan, config, batches, rates);
  plan.notes = known_failures(
      starting_point(plan.settings, config, plan.router, logical_ranks, micro_tokens));
  return plan;
}

}  // namespace moe::train
