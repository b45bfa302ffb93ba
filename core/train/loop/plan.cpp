#include "core/train/loop/plan.h"

#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/resources.h"
#include "core/base/version.h"
#include "core/data/templates.h"
#include "core/distributed/comm.h"
#include "core/model/config/weights.h"
#include "core/model/convert/init.h"
#include "core/model/convert/upcycle.h"
#include "core/route/router_override.h"
#include "core/train/config/losses.h"
#include "core/train/step/trainable.h"
#include "core/train/step/training_data.h"

namespace moe::train {

namespace {

// Sets router, logical ranks and coefficients of `plan`.
void plan_routing(RunPlan& plan, const model::ModelConfig& config) {
  TrainSettings& settings = plan.settings;
  plan.is_moe = config.moe.has_value();
  if (!plan.is_moe) {
    if (settings.router.any()) {
      throw UserError(
          "--router, --cf and --ep-ranks: {} is a dense folder; add --upcycle N, or upcycle it "
          "first",
          settings.model.string());
    }
    refuse_coefficients(settings);
    return;
  }
  const model::MoeConfig& moe = *config.moe;
  const route::StoredRouter stored{moe.router, moe.ep_ranks, moe.experts, moe.gate_scale};
  // An existing run is resumed with its own settings or refused, so its gate may differ from the
  // folder's without --force.
  const bool may_change_gate =
      settings.force || std::filesystem::exists(settings.run / "settings.toml");
  const auto resolved =
      route::override_router(stored, model::router_of_opened(settings.upcycle, settings.router),
                             may_change_gate, route::Purpose::kTrain);
  plan.notes = resolved.notes;
  if (moe.router_jitter > 0) {
    plan.notes.push_back(
        fmt::format("router_jitter_noise {} of {} is not applied: moe trains "
                    "routers without noise",
                    moe.router_jitter, settings.model.string()));
  }
  if (settings.evaluation.any()) {
    route::check_inference(resolved.router, "leave --eval-data and --eval-tasks out");
  }
  plan.routing = {resolved.router, resolved.ep_ranks};
  // settings.toml names this router in full, so that it does not depend on the folder. A folder
  // that is upcycled when it is opened records the router before experts are divided.
  settings.router = {
      to_full_string(settings.upcycle.experts ? model::upcycled_router(settings.router)
                                              : resolved.router),
      "", resolved.ep_ranks};
  settings.changes_gate = same_family(resolved.router, stored.router) &&
                          resolved.router.gate_norm != stored.router.gate_norm;
  resolve_coefficients(settings, moe, resolved);
  plan.losses = describe_losses(settings, resolved.router, moe.experts,
                                trains_router(settings.trained, config));
}

// Throws UserError if the replicas of `layout` cannot take equal numbers of a step's micro-batches.
void check_batches(const TrainSettings& settings, const distributed::Layout& layout) {
  const int64_t batches = *settings.global_batch / *settings.micro_batch;
  if (batches % layout.replicas != 0) {
    throw UserError(
        "--global-batch {} is {} micro-batches of {} rows, which {} replicas cannot share equally; "
        "give a multiple of {}",
        *settings.global_batch, batches, *settings.micro_batch, layout.replicas,
        *settings.micro_batch * layout.replicas);
  }
}

// Returns the layout of the processes.
distributed::Layout plan_layout(const RunPlan& plan, const model::ModelConfig& config,
                                int64_t processes, int64_t rank) {
  const distributed::Layout layout = distributed::make_layout(
      processes, rank, plan.settings.replicas, plan.is_moe ? plan.routing.ep_ranks : 1,
      plan.is_moe ? config.moe->experts : 0);
  check_batches(plan.settings, layout);
  return layout;
}

// Returns the number of tokens of the largest micro-batch.
int64_t micro_batch_tokens(const TrainSettings& settings, const data::Examples& examples) {
  if (settings.pack == data::Pack::kStream) {
    return *settings.micro_batch * *settings.seq_len;
  }
  const auto rows = static_cast<size_t>(*settings.micro_batch);
  std::multiset<int64_t> longest;
  for (int64_t index = 0; index < examples.size(); ++index) {
    longest.insert(examples.length(index));
    if (longest.size() > rows) {
      longest.erase(longest.begin());
    }
  }
  return std::accumulate(longest.begin(), longest.end(), int64_t{0});
}

void note_gathered_model(RunPlan& plan) {
  if (plan.memory.evaluation > 0) {
    plan.notes.push_back(
        fmt::format("for each evaluation every process gathers the whole model, {:.1f} GB beside "
                    "its share (--dry-run counts it)",
                    static_cast<double>(plan.memory.evaluation) / 1e9));
  }
}

void note_known_failures(RunPlan& plan, const model::ModelConfig& config) {
  for (const auto& sentence : known_failures(run_facts(plan.settings, config, plan.routing.router,
                                                       plan.routing.ep_ranks, plan.group_tokens))) {
    plan.notes.push_back(sentence);
  }
}

// Returns the inputs of one rank of several `processes`, which map the tokens that are `shared`.
Prepared prepare_rank(const TrainSettings& given, const TrainCallbacks& callbacks,
                      int64_t processes, int64_t rank, data::HostTokens* shared) {
  TrainSettings settings = given;
  check_numbers(settings);
  check_data_named(settings);
  Prepared run{model::open_checkpoint(settings.model, settings.upcycle, settings.router,
                                      settings.force_memory),
               {},
               {},
               {}};
  RunPlan& plan = run.plan;
  settings.text_template = data::named_template(settings.text_template, settings.model);
  const auto config = model::parse_config(run.checkpoint.config(), run.checkpoint.config_name());
  model::check_tensors(run.checkpoint, config);
  plan.settings = settings;
  plan_routing(plan, config);
  run.examples =
      read_data(settings, run.checkpoint, config.vocab_size, {[&](int64_t count, int64_t tokens) {
                  if (callbacks.stop_requested()) {
                    throw Interrupted("stopped while the data were read, nothing was saved");
                  }
                  callbacks.on_reading(count, tokens);
                }},
                plan.data, shared);
  plan.settings = resolve(plan.settings, config, run.examples);
  plan.layout = plan_layout(plan, config, processes, rank);
  const double epoch_rows =
      data::BatchStream(run.examples, batch_settings(plan.settings)).rows_per_epoch();
  if (!plan.settings.steps) {
    const double rows = *plan.settings.epochs * epoch_rows;
    plan.settings.steps =
        static_cast<int64_t>(std::ceil(rows / static_cast<double>(*plan.settings.global_batch)));
    plan.settings.epochs.reset();
  }
  plan.settings.evaluation = resolve_evaluation(plan.settings.evaluation, *plan.settings.steps);
  run.evaluator.emplace(plan.settings, run.checkpoint, config.vocab_size, callbacks.evaluate_tasks,
                        shared);
  plan.examples = run.examples.size();
  plan.tokens = run.examples.tokens();
  for (const auto& line : run.evaluator->description()) {
    plan.data.push_back(line);
  }
  plan.parameters = model::count_parameters(config).total;
  plan.group_tokens = micro_batch_tokens(plan.settings, run.examples);
  plan.memory = plan_memory(config, plan.settings, plan.routing.router, plan.group_tokens,
                            plan.settings.on_cuda ? kCudaProgram : resident_bytes(), plan.layout);
  note_gathered_model(plan);
  note_known_failures(plan, config);
  return run;
}

// Returns a text of all inputs that must be equal on all ranks.
std::string fingerprint(const RunPlan& plan, const data::Examples& examples,
                        const io::Checkpoint& checkpoint) {
  std::string text = fmt::format("moe {}\n{}", kVersion, to_toml(plan.settings));
  text += fmt::format("{} examples, {} tokens\n", plan.examples, plan.tokens);
  text += fmt::format("shards weights: {}\n", plan.settings.shard == Shard::kWeights);
  for (const auto& line : describe_data(examples)) {
    text += line + "\n";
  }
  text += checkpoint.config().dump() + "\n";
  for (const auto& tensor : checkpoint.tensors()) {
    text += fmt::format("{} {} {}\n", tensor.name, io::dtype_name(tensor.dtype), tensor.bytes());
  }
  return text;
}

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

// Returns the router of the run: that of the planned mixture, or the overridden one of the config.
route::ResolvedRouter planned_router(const TrainSettings& settings, const model::MoeConfig& moe) {
  return route::override_router({moe.router, moe.ep_ranks, moe.experts, moe.gate_scale},
                                model::router_of_opened(settings.upcycle, settings.router),
                                /*force=*/true, route::Purpose::kTrain);
}

}  // namespace

data::BatchSettings batch_settings(const TrainSettings& settings) {
  return {*settings.pack,        settings.shuffle, *settings.seq_len,
          *settings.micro_batch, settings.seed,    settings.pack_mask};
}

Prepared prepare(const TrainSettings& settings, const TrainCallbacks& callbacks,
                 distributed::Comm& ranks) {
  std::optional<Prepared> run;
  data::HostTokens tokens;
  const auto prepare_this_rank = [&] {
    run.emplace(prepare_rank(settings, callbacks, ranks.size(), ranks.rank(),
                             ranks.size() > 1 ? &tokens : nullptr));
  };
  if (ranks.size() == 1) {
    prepare_this_rank();
    return std::move(*run);
  }
  const int64_t first = distributed::ranks_of_this_host(ranks).front();
  distributed::on_all_ranks(&ranks, [&] {
    if (first == ranks.rank()) {
      prepare_this_rank();
    }
  });
  const auto offers = distributed::gather_texts(ranks, tokens.text());
  distributed::on_all_ranks(&ranks, [&] {
    if (first != ranks.rank()) {
      tokens.take(offers[static_cast<size_t>(first)]);
      prepare_this_rank();
    }
  });
  distributed::check_same_on_all_ranks(ranks, "the run",
                                       fingerprint(run->plan, run->examples, run->checkpoint));
  return std::move(*run);
}

MemoryNeed memory_need(const RunPlan& plan) {
  if (plan.settings.on_cuda) {
    return {};  // GPU memory is not checked here
  }
  const auto& settings = plan.settings;
  std::string remedy = "a smaller --micro-batch";
  remedy += settings.compute.recompute == model::Recompute::kLayer ? "" : ", --recompute layer";
  remedy += settings.lora.rank > 0 ? "" : ", --lora 8";
  remedy += settings.adamw.moments == io::DType::kBF16 ? "" : ", --optimizer-state bf16";
  const bool may_shard = plan.layout.processes > 1 && settings.shard != Shard::kWeights;
  remedy += may_shard ? ", --shard weights" : "";
  return {plan.memory.peak - plan.memory.program, 1,
          fmt::format("training {}", settings.model.string()),
          remedy + " take less (--dry-run says how much)"};
}

RunPlan plan_run(const TrainSettings& settings, int64_t processes) {
  RunPlan plan = prepare_rank(settings, TrainCallbacks{}, processes, /*rank=*/0, nullptr).plan;
  MemoryNeed need = memory_need(plan);
  need.processes = processes;
  if (const auto short_of = memory_shortage(need, memory_limits())) {
    plan.notes.push_back(*short_of);
  }
  return plan;
}

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
  plan.notes =
      known_failures(run_facts(plan.settings, config, plan.router, logical_ranks, micro_tokens));
  return plan;
}

}  // namespace moe::train
