#include "core/train/loop/plan.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <span>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/version.h"
#include "core/data/templates.h"
#include "core/io/file.h"
#include "core/io/staged_folder.h"
#include "core/model/config/weights.h"
#include "core/route/plan.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/observe/history.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/training_data.h"
#include "core/upcycle/init.h"
#include "core/upcycle/upcycle.h"

namespace moe::train {
namespace {

// Share of requests refused by chance above which known_failures() warns. For 8 experts and CF = k
// = 1 the share is 3.3 % at 1,024 tokens per rank, 4.7 % at 512 and 9.3 % at 128.
constexpr double kMaxChanceRefusal = 0.04;

// GPU memory of a process before it loads anything: context, libraries, NCCL's buffers.
constexpr uint64_t kCudaProgram = uint64_t{1} << 30;

// Returns E[(X - above)+] of X ~ Binomial(n, p), 0 < p < 1.
double expected_overflow(int64_t n, double p, int64_t above) {
  const auto log_factorial = [](int64_t x) { return std::lgamma(static_cast<double>(x) + 1); };
  double sum = 0;
  for (int64_t x = above + 1; x <= n; ++x) {
    const double log_probability = log_factorial(n) - log_factorial(x) - log_factorial(n - x) +
                                   x * std::log(p) + (n - x) * std::log1p(-p);
    sum += (x - above) * std::exp(log_probability);
  }
  return sum;
}

void add_warnings(RunPlan& plan, const model::ModelConfig& config) {
  const TrainSettings& settings = plan.settings;
  RunFacts facts;
  facts.lr = settings.lr;
  facts.last_lr = last_learning_rate(settings.model);
  if (config.moe) {
    facts.router = plan.routing.router;
    facts.trains_router = trains_router(settings.trained, config);
    facts.experts = config.moe->experts;
    facts.rank_tokens = plan.group_tokens / plan.routing.ep_ranks;
    facts.balance_loss = settings.lb_coef.value_or(0) > 0;
    facts.other_loss = settings.z_coef.value_or(0) > 0 || settings.seq_lb_coef.value_or(0) > 0;
  }
  std::ranges::copy(known_failures(facts), std::back_inserter(plan.notes));
}

// Sets the fields of `plan` that depend on the number of tokens of a micro-batch.
void plan_resources(RunPlan& plan, const model::ModelConfig& config, int64_t group_tokens) {
  plan.parameters = model::count_parameters(config).total;
  plan.group_tokens = group_tokens;
  plan.memory = plan_memory(config, plan.settings, plan.routing.router, group_tokens,
                            plan.settings.on_cuda ? kCudaProgram : resident_bytes(), plan.layout);
}

route::ResolvedRouter resolve_router(const TrainSettings& settings, const model::MoeConfig& moe,
                                     bool may_change_gate) {
  return route::override_router({moe.router, moe.ep_ranks, moe.experts, moe.gate_scale},
                                model::remaining_router_request(settings.upcycle, settings.router),
                                may_change_gate, route::Purpose::kTrain);
}

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
  // An existing run is resumed with its own settings or refused, so its gate may differ from the
  // folder's without --force.
  const bool may_change_gate =
      settings.force || std::filesystem::exists(settings.run / "settings.toml");
  const auto resolved = resolve_router(settings, moe, may_change_gate);
  plan.notes = resolved.notes;
  if (moe.router_jitter > 0) {
    plan.notes.push_back(
        fmt::format("router_jitter_noise {} of {} is not applied: moe trains routers without noise",
                    moe.router_jitter, settings.model.string()));
  }
  if (settings.evaluation.any()) {
    route::check_inference(resolved.router, "leave --eval-data and --eval-tasks out");
  }
  plan.routing = {resolved.router, resolved.ep_ranks};
  plan.routing.loss_group = settings.lb_group;
  // settings.toml has this router in full, so that a resumed run does not depend on the folder.
  // With --upcycle it has the router before --granularity is applied.
  settings.router = {to_string(settings.upcycle.experts ? model::upcycled_router(settings.router)
                                                        : resolved.router,
                               /*every_option=*/true),
                     "", resolved.ep_ranks};
  settings.changes_gate = resolved.router.family == moe.router.family &&
                          resolved.router.gate_norm != moe.router.gate_norm;
  resolve_coefficients(settings, moe, resolved);
  plan.losses = describe_losses(settings, resolved.router, moe.experts,
                                trains_router(settings.trained, config));
}

void check_batches(const TrainSettings& settings, const distributed::Layout& layout) {
  const int64_t batches = *settings.global_batch / *settings.micro_batch;
  USER_ERROR_IF(batches % layout.replicas != 0,
                "--global-batch {} is {} micro-batches of {} rows, which {} replicas cannot share "
                "equally; give a multiple of {}",
                *settings.global_batch, batches, *settings.micro_batch, layout.replicas,
                *settings.micro_batch * layout.replicas);
}

// Adds the cost of --lb-group global to the notes. A backward takes the time of about two forwards,
// or of three if it recomputes layers.
void note_forwards(RunPlan& plan) {
  const TrainSettings& settings = plan.settings;
  const int64_t batches = *settings.global_batch / (*settings.micro_batch * plan.layout.replicas);
  const bool has_balance = settings.lb_coef.value_or(0) != 0 || settings.lambda.value_or(0) != 0;
  if (plan.is_moe && settings.lb_group == route::LossGroup::kGlobal && has_balance && batches > 1) {
    const int64_t passes = settings.compute.recompute == model::Recompute::kNone ? 3 : 4;
    plan.notes.push_back(
        fmt::format("--lb-group global: each process forwards {} of its {} micro-batches of a step "
                    "a second time, to count tokens first: about {:.0f} % more compute; --lb-group "
                    "running avoids this and counts only the tokens of the step so far",
                    batches - 1, batches, 100.0 * (batches - 1) / (passes * batches)));
  }
}

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

// Prepares `rank` of `processes`. With `shared`, maps the tokens that another process on this host
// has offered, or else offers its own.
Prepared prepare_rank(const TrainSettings& given, const TrainCallbacks& callbacks,
                      int64_t processes, int64_t rank, data::HostTokens* shared) {
  TrainSettings settings = given;
  check_numbers(settings);
  check_data_named(settings);
  const auto vocabulary = extend_vocabulary(settings);
  Prepared run{model::open_checkpoint(settings.model, settings.upcycle, settings.router,
                                      settings.force_memory, vocabulary)};
  RunPlan& plan = run.plan;
  const data::Template text_template = parse_template(settings);
  if (settings.text_template == "auto" && text_template.description() == "paper") {
    settings.text_template = "paper";
  }
  if (text_template.chat() && text_template.chat()->uses_date() && settings.template_date.empty()) {
    settings.template_date = data::today();  // in settings.toml, so that a resumed run has it too
  }
  const auto config = model::parse_config(run.checkpoint.config(), run.checkpoint.config_name());
  model::check_tensors(run.checkpoint, config);
  plan.settings = settings;
  plan_routing(plan, config);
  if (!vocabulary.words.empty()) {
    plan.notes.push_back(vocabulary.words);
  }
  if (vocabulary.end > vocabulary.begin && (settings.lora.rank > 0 || !settings.trained.empty()) &&
      std::ranges::none_of(settings.trained, [](const std::string& word) {
        return word == "embeddings" || word == "*" ||
               word.find("embed_tokens") != std::string::npos;
      })) {
    plan.notes.emplace_back(
        "warning: the rows of the added tokens are not trained; add embeddings to --train");
  }
  run.examples =
      read_data(settings, run.checkpoint, config.vocab_size, {[&](int64_t count, int64_t tokens) {
                  if (callbacks.stop_requested()) {
                    throw Interrupted("stopped while the data was read; nothing was saved");
                  }
                  callbacks.on_reading(count, tokens);
                }},
                plan.data, shared);
  if (rank == 0 && settings.objective == data::Objective::kInstruct && !run.examples.all_rows) {
    plan.chat_files = chat_files(settings, run.checkpoint, config.vocab_size);
  }
  plan.settings = resolve(plan.settings, config, run.examples);
  plan.layout = distributed::make_layout(processes, rank, settings.replicas, plan.routing.ep_ranks,
                                         config.moe ? config.moe->experts : 0);
  check_batches(plan.settings, plan.layout);
  note_forwards(plan);
  const double epoch_rows =
      data::BatchStream(run.examples, batch_settings(plan.settings)).rows_per_epoch();
  if (!plan.settings.steps) {
    const double rows = *plan.settings.epochs * epoch_rows;
    plan.settings.steps = static_cast<int64_t>(std::ceil(rows / *plan.settings.global_batch));
    plan.settings.epochs.reset();
  }
  plan.settings.evaluation = resolve_evaluation(plan.settings.evaluation, *plan.settings.steps);
  run.evaluator.emplace(plan.settings, run.checkpoint, config.vocab_size, callbacks.evaluate_tasks,
                        shared);
  plan.examples = run.examples.size();
  plan.tokens = run.examples.tokens();
  std::ranges::copy(run.evaluator->description(), std::back_inserter(plan.data));
  plan_resources(plan, config, micro_batch_tokens(plan.settings, run.examples));
  if (plan.memory.evaluation > 0) {
    plan.notes.push_back(
        fmt::format("for each evaluation every process gathers the whole model, {:.1f} GB in "
                    "addition to its share (--dry-run counts it)",
                    plan.memory.evaluation / 1e9));
  }
  add_warnings(plan, config);
  return run;
}

// Returns a text that is equal on all ranks if they train the same run.
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
    model::check_shared_expert(model::read_config(settings.model), settings.model.string());
    config.moe->shared_expert_width = config.intermediate_size;
  }
  return config;
}

uint64_t model_bytes(const io::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    bytes += tensor.bytes();
  }
  return bytes;
}

// Throws UserError if the disk has no space for final/ and the checkpoints of the run: --keep plus
// the one that is being written, minus `existing`.
void check_run_space(const RunPlan& plan, const io::Checkpoint& checkpoint, int64_t existing) {
  const bool saves = plan.settings.save_every || plan.settings.save_minutes;
  const int64_t missing = saves ? std::max<int64_t>(1, plan.settings.keep + 1 - existing) : 0;
  io::check_space(plan.settings.run,
                  model_bytes(checkpoint) + missing * checkpoint_bytes(checkpoint, plan));
}

// Returns "Intel(R) Xeon(R) Processor @ 2.10GHz, 8 cores, 33.6 GB of memory, Linux 6.1.0 x86_64".
std::string describe_machine() {
  const std::string processor = system_field("/proc/cpuinfo", "model name");
  utsname system{};
  ::uname(&system);
  return fmt::format(
      "{}, {} cores, {} of memory, {} {} {}", processor.empty() ? "processor unknown" : processor,
      ::sysconf(_SC_NPROCESSORS_ONLN), io::size_text(system_bytes("/proc/meminfo", "MemTotal")),
      system.sysname, system.release, system.machine);
}

// Appends the line of this start to starts.jsonl.
void append_start(const std::filesystem::path& file, const RunPlan& plan) {
  OrderedJson start = {{"step", plan.first_step},
                       {"time", time_text()},
                       {"moe", kVersion},
                       {"libtorch", TORCH_VERSION},
                       {"machine", describe_machine()},
                       {"threads", at::get_num_threads()},
                       {"parameters", plan.parameters}};
  if (plan.is_moe) {
    start["router"] = to_string(plan.routing.router);
    start["loss"] = plan.losses;
  }
  if (plan.layout.processes > 1) {
    start["layout"] = distributed::describe(plan.layout);
  }
  start["data"] = plan.data;
  start["notes"] = plan.notes;
  const Descriptor descriptor = open_lines(file);
  const std::string line = start.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  io::write_all(descriptor, std::as_bytes(std::span(line)), file);
  io::sync(descriptor, file);
}

// Returns the newest intact checkpoint of an existing run, else the model. Sets plan.first_step and
// adds notes. Throws UserError if all checkpoints are damaged.
ResumePlan find_start(const RunFolder& folder, RunState state, RunPlan& plan) {
  std::vector<std::string> damaged;
  const bool resumes = state == RunState::kResumable;
  const auto checkpoint = resumes ? folder.newest_whole(damaged) : std::nullopt;
  USER_ERROR_IF(!checkpoint && !damaged.empty(),
                "{}: all checkpoints are damaged ({}); restore one from a backup, or use --force "
                "to start over at step 0",
                folder.path().string(), fmt::join(damaged, "; "));
  plan.notes.insert(plan.notes.end(), damaged.begin(), damaged.end());
  if (!checkpoint) {
    if (resumes) {
      plan.notes.push_back("resuming from step 0: no checkpoint was saved");
    }
    return {plan.settings.model, false, false, nullptr};
  }
  plan.first_step = read_train_state(*checkpoint).step;
  USER_ERROR_IF(parse_step_name(checkpoint->filename().string()) != plan.first_step,
                "{}: 'step' is {}, which differs from the folder's name; remove the folder",
                train_state_file(*checkpoint).string(), plan.first_step);
  plan.notes.push_back(
      fmt::format("resuming from step {} ({})", plan.first_step, checkpoint->string()));
  return {*checkpoint, /*resumed=*/true, false, nullptr};
}

// Returns RUN and its parents that do not exist yet. After a power failure a checkpoint is found
// only if they were synced.
std::vector<std::filesystem::path> folders_to_sync(const std::filesystem::path& run) {
  const std::filesystem::path whole = std::filesystem::absolute(run).lexically_normal();
  std::vector<std::filesystem::path> folders = {whole};
  while (!std::filesystem::exists(folders.back()) && folders.back().has_relative_path()) {
    folders.push_back(folders.back().parent_path());
  }
  return folders;
}

ResumePlan begin(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint) {
  const std::string toml = to_toml(plan.settings);
  Inputs inputs = find_inputs(plan.settings);
  const RunState state = folder.state(toml, inputs, plan.notes);
  if (state == RunState::kDone) {
    plan.first_step = *plan.settings.steps;
    plan.notes.push_back(fmt::format("this run is already complete ({}); use --force to start over",
                                     folder.final_model().string()));
    folder.remove_leftovers();
    return {{}, false, /*is_done=*/true, nullptr};
  }
  check_run_space(plan, checkpoint,
                  state == RunState::kResumable ? std::ssize(folder.saved_steps()) : 0);
  ResumePlan start = find_start(folder, state, plan);
  const std::vector<std::filesystem::path> unsynced = folders_to_sync(folder.path());
  folder.begin(toml, state);
  folder.claim(folder.inputs());
  io::write_whole(folder.inputs(), to_json(inputs));
  start.log = std::make_unique<MetricsLog>(
      folder, plan.first_step, start.resumed ? start.folder : std::filesystem::path(), plan.notes);
  append_start(folder.run_history(), plan);
  std::ranges::for_each(unsynced, io::sync_folder);
  return start;
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
  const double p = static_cast<double>(router.k) / experts;
  const double excess = p < 1 ? expected_overflow(rank_tokens, p, slots) : tokens - slots;
  return excess / (p * tokens);
}

std::vector<std::string> known_failures(const RunFacts& facts) {
  std::vector<std::string> warnings;
  if (facts.router && facts.trains_router &&
      !router_learns_from_task(*facts.router, facts.experts)) {
    warnings.push_back(fmt::format(
        "warning: router {} learns nothing from the task: a token has one expert, whose weight is "
        "1 for all logits, so {}; st=on or gate=none gives it a gradient",
        route::to_string(*facts.router),
        facts.other_loss     ? "only the auxiliary losses move the router"
        : facts.balance_loss ? "only the load-balance loss moves the router"
                             : "with --lb-coef 0 nothing moves the router"));
  }
  const double refused =
      facts.router ? chance_refusal_share(*facts.router, facts.rank_tokens, facts.experts) : 0;
  if (refused > kMaxChanceRefusal) {
    warnings.push_back(fmt::format(
        "warning: capacity is counted over {} tokens per logical rank, where a router that chooses "
        "evenly at random has {:.1f} % of its requests refused by chance; a larger --micro-batch "
        "or --seq-len, fewer --ep-ranks or a larger --cf refuse fewer",
        facts.rank_tokens, 100 * refused));
  }
  // The tolerance accepts exactly ten times the last rate, which is the parent's maximum.
  const double last_lr = facts.last_lr.value_or(0);
  if (last_lr > 0 && facts.lr / last_lr > kMaxLrRatio * (1 + 1e-6)) {
    warnings.push_back(fmt::format(
        "warning: --lr {:g} is {:.0f} times the last learning rate that the model was trained "
        "with ({:g}), more than a schedule usually decays, which can degrade the model before the "
        "experts differ; use {:g} or less",
        facts.lr, facts.lr / last_lr, last_lr, kMaxLrRatio * last_lr));
  }
  return warnings;
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
      tokens.take(offers[first]);
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
          remedy + " take less (--dry-run prints the estimate)"};
}

RunPlan plan_run(const TrainSettings& settings, int64_t processes) {
  RunPlan plan = prepare_rank(settings, TrainCallbacks{}, processes, /*rank=*/0, nullptr).plan;
  MemoryNeed need = memory_need(plan);
  need.processes = processes;
  if (const auto shortage = memory_shortage(need, memory_limits())) {
    plan.notes.push_back(*shortage);
  }
  return plan;
}

RunPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus) {
  USER_ERROR_IF(nodes < 1 || gpus < 1, "--nodes {} --gpus {}: must both be at least 1", nodes,
                gpus);
  model::check_request(settings.upcycle);
  const model::ModelConfig config =
      settings.upcycle.experts ? planned_config(settings) : model::read_config(settings.model);
  RunPlan plan;
  plan.settings = settings;
  plan.settings.on_cuda = true;
  plan.settings = resolve(plan.settings, config, {});
  if (config.moe) {
    const auto resolved = resolve_router(settings, *config.moe, /*may_change_gate=*/true);
    plan.routing = {resolved.router, resolved.ep_ranks};
  }
  plan.layout = distributed::make_layout(nodes * gpus, 0, settings.replicas, plan.routing.ep_ranks,
                                         config.moe ? config.moe->experts : 0);
  plan.settings.global_batch =
      settings.global_batch.value_or(*plan.settings.micro_batch * plan.layout.replicas);
  check_batches(plan.settings, plan.layout);
  plan.is_moe = config.moe.has_value();
  plan_resources(plan, config, *plan.settings.micro_batch * *plan.settings.seq_len);
  add_warnings(plan, config);
  if (!settings.add_tokens.empty()) {
    plan.notes.emplace_back("the rows of --add-tokens are not counted");
  }
  return plan;
}

uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan) {
  const int64_t state = 4 + 2 * io::dtype_bytes(plan.settings.adamw.moments);  // per parameter
  return model_bytes(checkpoint) + state * plan.parameters;
}

ResumePlan begin_run(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint,
                     distributed::Comm& ranks) {
  const TrainSettings& settings = plan.settings;
  const bool is_done = !settings.force && std::filesystem::exists(folder.final_model());
  if (const auto shortage = distributed::check_memory(
          &ranks, is_done ? MemoryNeed{} : memory_need(plan), settings.force_memory)) {
    plan.notes.push_back(*shortage);
  }
  ResumePlan start;
  distributed::on_all_ranks(&ranks, [&] {
    if (ranks.rank() == 0) {
      start = begin(folder, plan, checkpoint);
    }
  });
  if (ranks.size() > 1) {
    const OrderedJson decision = {{"folder", start.folder.string()},
                                  {"resumed", start.resumed},
                                  {"is_done", start.is_done},
                                  {"first_step", plan.first_step}};
    const Json received =
        parse_json(distributed::gather_texts(ranks, decision.dump()).front(), "rank 0");
    start = {received["folder"].get<std::string>(), received["resumed"], received["is_done"],
             std::move(start.log)};
    plan.first_step = received["first_step"];
  }
  return start;
}

}  // namespace moe::train
