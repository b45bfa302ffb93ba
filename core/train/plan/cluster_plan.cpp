#include "core/train/plan/cluster_plan.h"

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/model/config/weights.h"
#include "core/model/convert/init.h"
#include "core/model/convert/upcycle.h"
#include "core/route/router_override.h"
#include "core/train/plan/known_failures.h"
#include "core/train/plan/run_plan.h"

namespace moe::train {

namespace {

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

}  // namespace

ClusterPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus) {
  if (nodes < 1 || gpus < 1) {
    throw UserError("--nodes {} --gpus {}: must both be at least 1", nodes, gpus);
  }
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
  plan.layout = distributed::make_layout(nodes * gpus, 0, settings.replicas, logical_ranks,
                                         config.moe ? config.moe->experts : 0);
  plan.settings.global_batch =
      settings.global_batch.value_or(*plan.settings.micro_batch * plan.layout.replicas);
  check_batches(plan.settings, plan.layout);
  const int64_t micro_tokens = *plan.settings.micro_batch * *plan.settings.seq_len;
  plan.parameters = model::count_parameters(config).total;
  plan.memory =
      plan_memory(config, plan.settings, plan.router, micro_tokens, kCudaProgram, plan.layout);
  plan.notes = known_failures(
      starting_point(plan.settings, config, plan.router, logical_ranks, micro_tokens));
  return plan;
}

}  // namespace moe::train
