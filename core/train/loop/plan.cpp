#include "core/train/loop/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/version.h"
#include "core/data/templates.h"
#include "core/model/config/weights.h"
#include "core/route/plan.h"
#include "core/train/step/trainable.h"
#include "core/train/step/training_data.h"
#include "core/upcycle/init.h"
#include "core/upcycle/upcycle.h"

namespace moe::train {

namespace {

// Share of requests refused by chance above which known_failures() warns. For 8 experts and CF = k
// = 1 the share is 3.3 % at 1,024 tokens per rank, 4.7 % at 512 and 9.3 % at 128.
constexpr double kMaxChanceRefusal = 0.04;

// Returns E[(X - above)+] of X ~ Binomial(n, p), 0 < p < 1, for `above` >= the mean. Each term is
// computed from the one before, until terms are negligible.
double upper_tail(int64_t n, double p, int64_t above) {
  const auto count = static_cast<double>(n);
  const auto first = static_cast<double>(above + 1);
  double probability =
      std::exp(std::lgamma(count + 1) - std::lgamma(first + 1) - std::lgamma(count - first + 1) +
               first * std::log(p) + (count - first) * std::log1p(-p));
  double sum = 0;
  for (double x = first; x <= count; ++x) {
    const double term = (x - first + 1) * probability;
    sum += term;
    if (term <= 1e-17 * sum) {
      break;
    }
    probability *= (count - x) / (x + 1) * p / (1 - p);
  }
  return sum;
}

// Returns E[(X - above)+] for any `above`. Below the mean it is E[X] - above + E[(above - X)+], and
// n - X is binomial too.
double expected_overflow(int64_t n, double p, int64_t above) {
  const double beyond = static_cast<double>(n) * p - static_cast<double>(above);
  return beyond > 0 ? beyond + upper_tail(n, 1 - p, n - above) : upper_tail(n, p, above);
}

void check_router_gradient(const RunFacts& facts, std::vector<std::string>& found) {
  if (!facts.trains_router || router_learns_from_task(*facts.router, facts.experts)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: router {} learns nothing from the task: a token has one expert, whose weight is 1 "
      "whatever the logits are, so {}; st=on or gate=none gives it a gradient",
      route::to_string(*facts.router),
      facts.other_loss     ? "only the auxiliary losses move the router"
      : facts.balance_loss ? "only the load-balance loss moves the router"
                           : "with --lb-coef 0 nothing moves the router"));
}

void check_chance_refusals(const RunFacts& facts, std::vector<std::string>& found) {
  const double share = chance_refusal_share(*facts.router, facts.rank_tokens, facts.experts);
  if (share <= kMaxChanceRefusal) {
    return;
  }
  found.push_back(fmt::format(
      "warning: capacity is counted over {} tokens a logical rank, where a router that chooses "
      "evenly at random has {:.1f} % of its requests refused by chance alone; a larger "
      "--micro-batch or --seq-len, fewer --ep-ranks or a larger --cf refuse fewer",
      facts.rank_tokens, 100 * share));
}

void check_learning_rate(const RunFacts& facts, std::vector<std::string>& found) {
  // The tolerance accepts exactly ten times the last rate, which is the parent's maximum.
  const double ratio = *facts.last_lr > 0 ? facts.lr / *facts.last_lr : 0;
  if (ratio <= kMaxLrRatio * (1 + 1e-6)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: --lr {:g} is {:.0f} times the last learning rate that the model was trained with "
      "({:g}), more than a schedule usually decays, which can degrade the model before the experts "
      "differ; use {:g} or less",
      facts.lr, ratio, *facts.last_lr, kMaxLrRatio * *facts.last_lr));
}

// Returns the facts of a run with resolved settings and micro-batches of at most `group_tokens`
// tokens.
RunFacts run_facts(const TrainSettings& settings, const model::ModelConfig& config,
                   const model::RoutingOptions& routing, int64_t group_tokens) {
  RunFacts facts;
  facts.lr = settings.lr;
  facts.last_lr = last_learning_rate(settings.model);
  if (config.moe) {
    facts.router = routing.router;
    facts.trains_router = trains_router(settings.trained, config);
    facts.experts = config.moe->experts;
    facts.rank_tokens = group_tokens / routing.ep_ranks;
    facts.balance_loss = settings.lb_coef.value_or(0) > 0;
    facts.other_loss = settings.z_coef.value_or(0) > 0 || settings.seq_lb_coef.value_or(0) > 0;
  }
  return facts;
}

// Sets router, logical ranks and coefficients of `plan`.
void plan_routing(RunPlan& plan, const model::ModelConfig& config) {
  TrainSettings& settings = plan.settings;
  plan.is_moe = config.moe.has_value();
  if (!plan.is_moe) {
    USER_ERROR_IF(
        settings.router.any(),
        "--router, --cf and --ep-ranks: {} is a dense folder; add --upcycle N, or upcycle it first",
        settings.model.string());
    refuse_coefficients(settings);
    return;
  }
  const model::MoeConfig& moe = *config.moe;
  const route::StoredRouter stored{moe.router, moe.ep_ranks, moe.experts, moe.gate_scale};
  // An existing run is resumed with its own settings or refused, so its gate may differ from the
  // folder's without --force.
  const bool may_change_gate =
      settings.force || std::filesystem::exists(settings.run / "settings.toml");
  const auto resolved = route::override_router(
      stored, model::remaining_router_request(settings.upcycle, settings.router), may_change_gate,
      route::Purpose::kTrain);
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
  // settings.toml has this router in full, so that a resumed run does not depend on the folder. A
  // run with --upcycle has the router before --granularity there.
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
  USER_ERROR_IF(batches % layout.replicas != 0,
                "--global-batch {} is {} micro-batches of {} rows, which {} replicas cannot share "
                "equally; give a multiple of {}",
                *settings.global_batch, batches, *settings.micro_batch, layout.replicas,
                *settings.micro_batch * layout.replicas);
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

// Prepares `rank` of `processes`. With `shared`, maps the tokens of another process on this host if
// it has offered them, and offers its own otherwise.
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
  plan.layout = distributed::make_layout(processes, rank, plan.settings.replicas,
                                         plan.is_moe ? plan.routing.ep_ranks : 1,
                                         plan.is_moe ? config.moe->experts : 0);
  check_batches(plan.settings, plan.layout);
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
  if (plan.memory.evaluation > 0) {
    plan.notes.push_back(
        fmt::format("for each evaluation every process gathers the whole model, {:.1f} GB beside "
                    "its share (--dry-run counts it)",
                    static_cast<double>(plan.memory.evaluation) / 1e9));
  }
  for (const auto& warning :
       known_failures(run_facts(plan.settings, config, plan.routing, plan.group_tokens))) {
    plan.notes.push_back(warning);
  }
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
  const auto file = std::filesystem::is_directory(model) ? model / "config.json" : model;
  return model::parse_config(read_json(file.string(), uint64_t{16} << 20), file.string());
}

// Returns the config of the mixture that settings.upcycle makes of settings.model.
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
    model::check_shared_expert(read_config(settings.model), settings.model.string());
    config.moe->shared_expert_width = config.intermediate_size;
  }
  return config;
}

}  // namespace

bool router_learns_from_task(const route::RouterSettings& router, int64_t experts) {
  const int64_t choices = route::max_choices(router, experts) + (router.fr ? 1 : 0);
  const bool has_one_expert = std::min(choices, experts) == 1;
  return experts == 1 || !has_one_expert || router.straight_through ||
         !route::weights_sum_to_one(router);
}

double chance_refusal_share(const route::RouterSettings& router, int64_t rank_tokens,
                            int64_t experts) {
  if (!router.family->has_token_requests || !route::has_capacity(router) || rank_tokens < 1) {
    return 0;
  }
  const int64_t slots = route::capacity_slots(router.capacity_factor, rank_tokens, experts);
  if (slots >= rank_tokens) {
    return 0;
  }
  const auto tokens = static_cast<double>(rank_tokens);
  const double p = static_cast<double>(router.k) / static_cast<double>(experts);
  const double excess =
      p < 1 ? expected_overflow(rank_tokens, p, slots) : tokens - static_cast<double>(slots);
  return excess / (p * tokens);
}

std::vector<std::string> known_failures(const RunFacts& facts) {
  std::vector<std::string> found;
  if (facts.router) {
    check_router_gradient(facts, found);
    check_chance_refusals(facts, found);
  }
  if (facts.last_lr) {
    check_learning_rate(facts, found);
  }
  return found;
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
  const int64_t first = distributed::same_host_ranks(ranks).front();
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

RunPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus) {
  USER_ERROR_IF(nodes < 1 || gpus < 1, "--nodes {} --gpus {}: must both be at least 1", nodes,
                gpus);
  model::check_request(settings.upcycle);
  const model::ModelConfig config =
      settings.upcycle.experts ? planned_config(settings) : read_config(settings.model);
  RunPlan plan;
  plan.settings = settings;
  plan.settings.on_cuda = true;
  plan.settings = resolve(plan.settings, config, {});
  if (config.moe) {
    const model::MoeConfig& moe = *config.moe;
    const auto resolved =
        route::override_router({moe.router, moe.ep_ranks, moe.experts, moe.gate_scale},
                               model::remaining_router_request(settings.upcycle, settings.router),
                               /*force=*/true, route::Purpose::kTrain);
    plan.routing = {resolved.router, resolved.ep_ranks};
  }
  plan.layout = distributed::make_layout(nodes * gpus, 0, settings.replicas, plan.routing.ep_ranks,
                                         config.moe ? config.moe->experts : 0);
  plan.settings.global_batch =
      settings.global_batch.value_or(*plan.settings.micro_batch * plan.layout.replicas);
  check_batches(plan.settings, plan.layout);
  const int64_t micro_tokens = *plan.settings.micro_batch * *plan.settings.seq_len;
  plan.is_moe = config.moe.has_value();
  plan.parameters = model::count_parameters(config).total;
  plan.memory = plan_memory(config, plan.settings, plan.routing.router, micro_tokens, kCudaProgram,
                            plan.layout);
  plan.notes = known_failures(run_facts(plan.settings, config, plan.routing, micro_tokens));
  return plan;
}

}  // namespace moe::train
