#include "core/train/config/settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/version.h"
#include "core/data/example_set.h"
#include "core/route/router.h"

namespace moe::train {
namespace {

constexpr const char *kRectifyRouter = "Rectify-Router", *kAdamW = "torch's AdamW",
                     *kFromModel = "the model's";

Range with_rule(Range range, const char* rule) {
  range.rule = rule;
  return range;
}

Range below_one() {
  return with_rule(number_between(0, std::nextafter(1.0, 0.0)), "must lie in [0, 1)");
}

template <typename Value>
Choice named(const char* name, Value& member,
             std::vector<std::pair<std::string, std::type_identity_t<Value>>> values) {
  return choice<Value, Value>(name, member, std::move(values));
}

Choice on_or_off(const char* name, bool& member) {
  return named(name, member, {{"on", true}, {"off", false}});
}

Option changeable(Option option) {
  option.changes_numbers = false;
  return option;
}

Option unrecorded(Option option) {
  option.is_recorded = false;
  return option;
}

Option written_if(std::function<bool()> is_written, Option option) {
  option.is_written = std::move(is_written);
  return option;
}

Options path_options(TrainSettings& settings) {
  return {
      {.name = "model",
       .member = &settings.model,
       .group = group::kModel,
       .help = "model directory to start from, dense or MoE",
       .spelling = "MODEL,--model",
       .is_required = true},
      {.name = "out",
       .member = &settings.run,
       .group = group::kOutput,
       .help = "run directory: RUN/final, checkpoints, metrics, settings",
       .spelling = "-o,--out"},
      {"data", &settings.data, group::kData,
       "training files, plain, gzip or zstd; FILE:WEIGHT mixes several (required)"},
      changeable({"cache", &settings.cache, group::kData,
                  "directory of tokenized data, reused by later runs, or off", Range(),
                  "~/.cache/moe/tokens"}),
  };
}

// Returns the options of groups Batch, Memory and Optimizer, and --train.
Options training_options(TrainSettings& settings) {
  const auto has_adapters = [&settings] { return settings.lora.rank > 0; };
  return {
      {"pack",
       choice<std::optional<data::Pack>, data::Pack>(
           "pack", settings.pack, {{"stream", data::Pack::kStream}, {"none", data::Pack::kNone}}),
       group::kBatch, "stream (concatenate examples and cut) or none (one example per sequence)",
       Range(), "stream; none for token rows"},
      {"pack-mask",
       named("pack-mask", settings.pack_mask,
             {{"causal", data::PackMask::kCausal}, {"doc", data::PackMask::kDoc}}),
       group::kBatch, "attention within a sequence: causal, or doc (within each example only)"},
      {"shuffle", on_or_off("shuffle", settings.shuffle), group::kBatch,
       "shuffle the data: on, or off for file order"},
      {"seq-len", &settings.seq_len, group::kBatch, "tokens per sequence", whole_from(2),
       "2048, at most the model's context length", kRectifyRouter},
      {"micro-batch", &settings.micro_batch, group::kBatch, "sequences per forward pass",
       whole_from(1), "8, or the largest smaller divisor of the global batch", kRectifyRouter},
      {"global-batch", &settings.global_batch, group::kBatch, "sequences per optimizer step",
       whole_from(1), "one micro-batch"},
      written_if(
          [&settings] { return settings.overlong != data::Overlong::kError; },
          {"overlong",
           named("overlong", settings.overlong,
                 {{"error", data::Overlong::kError},
                  {"drop", data::Overlong::kDrop},
                  {"truncate", data::Overlong::kTruncate}}),
           group::kBatch,
           "examples longer than --seq-len: error (with --pack none only), drop or truncate"}),
      {"steps", &settings.steps, group::kBatch, "optimizer steps", whole_from(1)},
      {"epochs", &settings.epochs, group::kBatch, "passes over the data, instead of --steps",
       positive_number(), "1"},
      {"precision", choice(settings.compute.precision, model::parse_precision, model::to_string),
       group::kMemory,
       "precision of matrix products: fp32, bf16 (weights stay fp32) or tf32 (CUDA)"},
      {"recompute", choice(settings.compute.recompute, model::parse_recompute, model::to_string),
       group::kMemory,
       "activation recomputation in backward: none, ffn (all but attention) or layer"},
      written_if(has_adapters, {"lora", &settings.lora.rank, group::kMemory,
                                "train LoRA adapters of this rank instead of the weights", Range(),
                                "no adapters"}),
      written_if(has_adapters,
                 {"lora-alpha", &settings.lora.alpha, group::kMemory,
                  "LoRA alpha; adapters are scaled by alpha / rank", Range(), "the rank"}),
      written_if(has_adapters, with_commas({"lora-on", &settings.lora.on, group::kMemory,
                                            "modules with adapters: attention, ffn or both"})),
      with_commas({"train", &settings.trained, group::kModel,
                   "parameters to train: experts, router, attention, dense, norms, embeddings, or "
                   "a name pattern",
                   Range(), "all"}),
      {"lr", &settings.lr, group::kOptimizer, "peak learning rate", number_from(0), "",
       kRectifyRouter},
      {"min-lr", &settings.min_lr, group::kOptimizer, "learning rate of the last step",
       number_from(0), "lr / 10", kRectifyRouter},
      {"schedule",
       named("schedule", settings.schedule,
             {{"cosine", ScheduleKind::kCosine},
              {"linear", ScheduleKind::kLinear},
              {"constant", ScheduleKind::kConstant},
              {"wsd", ScheduleKind::kWsd}}),
       group::kOptimizer, "learning rate schedule: cosine, linear, constant or wsd", Range(), "",
       kRectifyRouter},
      {"warmup", &settings.warmup, group::kOptimizer, "steps of linear warmup", whole_from(0)},
      {"weight-decay", &settings.adamw.weight_decay, group::kOptimizer,
       "decoupled weight decay, not applied to norms and biases", number_from(0)},
      {"decay-embeddings", on_or_off("decay-embeddings", settings.adamw.decay_embeddings),
       group::kOptimizer, "apply weight decay to embedding and output head: on or off"},
      {"beta1", &settings.adamw.beta1, group::kOptimizer, "AdamW decay rate of the first moment",
       below_one(), "", kAdamW},
      {"beta2", &settings.adamw.beta2, group::kOptimizer, "AdamW decay rate of the second moment",
       below_one(), "", kAdamW},
      {"eps", &settings.adamw.eps, group::kOptimizer, "AdamW epsilon", number_from(0), "", kAdamW},
      {"clip", &settings.clip, group::kOptimizer, "maximum gradient norm; 0 = no clipping",
       number_from(0)},
      {"skip-outliers", &settings.skip_outliers, group::kOptimizer,
       "skip steps whose loss or gradient norm is N standard deviations above the mean of the last "
       "128; 6 is usual",
       with_rule(number_from(1),
                 "must be a number of standard deviations of at least 1; 6 is usual"),
       "off"},
      {"optimizer-state",
       named("optimizer-state", settings.adamw.moments,
             {{"fp32", io::DType::kF32}, {"bf16", io::DType::kBF16}}),
       group::kMemory, "dtype of the AdamW moments: fp32 or bf16 (8 or 4 bytes per parameter)"},
  };
}

// Returns the options of losses, evaluation, checkpoints and the machine.
Options run_options(TrainSettings& settings) {
  EvaluationSettings& evaluation = settings.evaluation;
  return {
      {"lb-coef", &settings.lb_coef, group::kRouter, "coefficient of the load-balance loss",
       number_from(0), kFromModel},
      written_if([&settings] { return settings.lb_group != route::LossGroup::kRank; },
                 {"lb-group",
                  named("lb-group", settings.lb_group,
                        {{"rank", route::LossGroup::kRank},
                         {"micro", route::LossGroup::kMicro},
                         {"running", route::LossGroup::kRunning},
                         {"global", route::LossGroup::kGlobal}}),
                  group::kRouter,
                  "tokens that the load-balance loss counts together: rank (a logical rank's of a "
                  "micro-batch), micro (a micro-batch), running (the step so far) or global (the "
                  "step)"}),
      {"entropy-coef", &settings.entropy_coef, group::kRouter,
       "coefficient of the top-p entropy loss", number_from(0), kFromModel},
      {"z-coef", &settings.z_coef, group::kRouter,
       "coefficient of the router z-loss; 1e-3 is usual", number_from(0),
       "the model's, initially 0"},
      {"seq-lb-coef", &settings.seq_lb_coef, group::kRouter,
       "coefficient of the per-sequence load-balance loss; 1e-4 is usual", number_from(0),
       "the model's, initially 0"},
      {"lambda", &settings.lambda, group::kRouter,
       "relu router: coefficient of the L1 loss in the first step", number_from(0),
       "the model's last value, else the router's lambda0"},
      {"eval-data", &evaluation.data, group::kTasks,
       "held-out files in the formats of --data, for loss and samples"},
      {"eval-rows", &evaluation.rows, group::kTasks,
       "use the first N sequences of --eval-data; 0 = all", whole_from(0), "64"},
      with_commas({"eval-tasks", &evaluation.tasks, group::kTasks,
                   "benchmarks to score during training, as in moe eval --tasks"}),
      {"eval-data-dir", &evaluation.tasks_folder, group::kTasks,
       "directory of benchmark files, as in moe eval --data"},
      {"eval-limit", &evaluation.tasks_limit, group::kTasks,
       "use only the first N questions of each task", whole_from(1)},
      {"eval-every", &evaluation.every, group::kTasks,
       "steps between evaluations; also evaluates before and after the run", whole_from(1),
       "a tenth of the run"},
      changeable({"save-every", &settings.save_every, group::kOutput, "steps between checkpoints",
                  whole_from(1), "only at the end"}),
      changeable({"save-minutes", &settings.save_minutes, group::kOutput,
                  "also save a checkpoint every N minutes", positive_number()}),
      changeable({"keep", &settings.keep, group::kOutput, "keep only the newest N checkpoints",
                  whole_from(1)}),
      written_if([&settings] { return settings.keep_every > 0; },
                 changeable({"keep-every", &settings.keep_every, group::kOutput,
                             "also keep checkpoints whose step is a multiple of N", whole_from(0),
                             "none"})),
      {"seed", &settings.seed, group::kBatch, "random seed (shuffling, stochastic rounding)",
       seed_range()},
      written_if([&settings] { return settings.threads > 0; },
                 changeable({"threads", &settings.threads, group::kRanks,
                             "CPU threads, at most one per processor", whole_between(0, 4096),
                             "one per core"})),
      written_if([&settings] { return settings.on_cuda; },
                 {"device", named("device", settings.on_cuda, {{"cpu", false}, {"cuda", true}}),
                  group::kRanks, "cpu or cuda (one GPU per process)"}),
      unrecorded(changeable({"replicas", &settings.replicas, group::kRanks,
                             "data-parallel replicas of the expert-parallel group", Range(),
                             "as few as --ep-ranks allows"})),
      unrecorded(changeable(
          {"shard",
           named("shard", settings.shard,
                 {{"optimizer", Shard::kOptimizer}, {"weights", Shard::kWeights}}),
           group::kRanks,
           "what to shard across processes: optimizer (ZeRO-1) or weights (ZeRO-3, dense weights "
           "and their gradients too)"})),
  };
}

// Returns a value of a TOML file as text; equal values have equal texts.
std::string toml_text(const Json& value) {
  if (value.is_array()) {
    std::vector<std::string> texts;
    std::ranges::transform(value, std::back_inserter(texts), toml_text);
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  if (value.is_number_float()) {
    return fmt::format("{}", value.get<double>());
  }
  return value.is_string() ? toml_string(value.get<std::string>()) : value.dump();
}

// Returns the position of `step` between `first` (0) and `last` (1); 0 if last <= first.
double progress(int64_t step, int64_t first, int64_t last) {
  return last <= first ? 0.0
                       : std::clamp(static_cast<double>(step - first) / (last - first), 0.0, 1.0);
}

// Throws UserError for a flag without the --eval-data or --eval-tasks that it requires, and for a
// held-out file with a weight.
void check_evaluation(const EvaluationSettings& settings) {
  const bool has_data = !settings.data.empty(), has_tasks = !settings.tasks.empty();
  const auto check_needs = [](bool is_given, const char* flag, bool has_needed,
                              const char* needed) {
    USER_ERROR_IF(is_given && !has_needed, "{} requires {}", flag, needed);
  };
  check_needs(settings.rows.has_value(), "--eval-rows", has_data, "--eval-data");
  check_needs(settings.tasks_limit.has_value(), "--eval-limit", has_tasks, "--eval-tasks");
  check_needs(!settings.tasks_folder.empty(), "--eval-data-dir", has_tasks, "--eval-tasks");
  check_needs(settings.every.has_value(), "--eval-every", settings.any(),
              "--eval-data or --eval-tasks");
  for (const auto& source : data::parse_sources(settings.data)) {
    USER_ERROR_IF(source.weight > 0,
                  "--eval-data {}: held-out files are not mixed; leave out the weight",
                  source.file.string());
  }
}

void resolve_batches(TrainSettings& settings) {
  if (!settings.micro_batch) {
    const int64_t global_batch = settings.global_batch.value_or(8);
    settings.micro_batch = std::min<int64_t>(8, global_batch);
    while (global_batch % *settings.micro_batch != 0) {
      --*settings.micro_batch;
    }
  }
  settings.global_batch = settings.global_batch.value_or(*settings.micro_batch);
  USER_ERROR_IF(*settings.global_batch % *settings.micro_batch != 0,
                "--global-batch {} is not a multiple of --micro-batch {}; a step consists of whole "
                "micro-batches",
                *settings.global_batch, *settings.micro_batch);
}

void resolve_length(TrainSettings& settings, const model::ModelConfig& config) {
  constexpr int64_t kSeqLen = 2048;
  const int64_t max_length = config.longest_sequence();
  settings.seq_len = settings.seq_len.value_or(std::min(kSeqLen, max_length));
  USER_ERROR_IF(
      *settings.seq_len > max_length,
      "--seq-len {}: the model was made for {} positions ({} in config.json); give at most that",
      *settings.seq_len, max_length,
      config.sliding_window > 0 ? "sliding_window" : "max_position_embeddings");
}

// Throws UserError if a coefficient is set for a loss that does not exist.
void refuse(const std::optional<double>& coefficient, const char* flag, const std::string& reason) {
  USER_ERROR_IF(coefficient.value_or(0) != 0, "{} {}: {}; leave it out", flag, *coefficient,
                reason);
}

// Returns the names of the router families with `feature`: "relu".
template <typename Feature>
std::string family_names(Feature route::RouterFamily::*feature) {
  std::vector<std::string> words;
  for (const auto& family : route::router_families()) {
    if (family.*feature) {
      words.push_back(family.word);
    }
  }
  return fmt::format("{}", fmt::join(words, " and "));
}

// Returns " + 0.01 x load balance (..)", or a clause that the loss is off.
std::string loss_term(const std::optional<double>& coefficient, const std::string& loss) {
  return coefficient.value_or(0) == 0 ? fmt::format("; {} is off (coefficient 0)", loss)
                                      : fmt::format(" + {} x {}", *coefficient, loss);
}

std::string l1_term(double lambda, const route::RouterSettings& router, int64_t experts,
                    bool router_trains, const char* grouped) {
  const std::string loss = fmt::format(
      "L1 ({}{})",
      router.l1 == route::L1Weights::kRefined ? "refined by load, l1=refined" : "l1=plain",
      grouped);
  if (lambda == 0) {
    return fmt::format("; {} is off (lambda 0 stays 0)", loss);
  }
  if (!router_trains) {
    return fmt::format(" + lambda x {}; lambda stays {}, as no router is trained", loss, lambda);
  }
  const double target = 1.0 - static_cast<double>(router.k) / experts;
  return fmt::format(
      " + lambda x {}; lambda is {} at first, and is multiplied by {} after a step whose sparsity "
      "is below S* = 1 - {}/{} = {:.6g}, else divided by it, within {} to {}",
      loss, lambda, router.lambda_multiplier, router.k, experts, target, route::kLambdaFloor,
      route::kLambdaCeiling);
}

Options& added_options() {
  static Options added;
  return added;
}

}  // namespace

Options record_options(TrainSettings& settings) {
  return {
      {"format", choice(settings.format, data::parse_format, data::format_name), group::kData,
       "alpaca, openorca, dolly, pairs, chosen, sharegpt, messages, questions, io, text or rows",
       Range(), "detected from the first record"},
      {"columns", &settings.columns, group::kData,
       "keys to rename, such as question=instruction,answer=output", Range(), "none"},
      written_if([&settings] { return settings.bad_records != data::BadRecords::kError; },
                 {"bad-records",
                  named("bad-records", settings.bad_records,
                        {{"error", data::BadRecords::kError}, {"skip", data::BadRecords::kSkip}}),
                  group::kData, "records that cannot be used: error (lists them) or skip"}),
      {"template", &settings.text_template, group::kData,
       "prompt template: auto (the model's chat template, or paper if it has none), paper, alpaca, "
       "llama2, llama3, chatml, zephyr, mistral, mistral-v0, mistral-v3, mistral-tekken, "
       "mistral-v7, FILE.jinja, or a text with {instruction} and {response}; \\n is a newline",
       Range(), "", kRectifyRouter},
      {"chat-template-args", &settings.template_arguments, group::kData,
       "JSON object of more names for the chat template, such as {\"enable_thinking\": false}",
       Range(), "none"},
      {"template-date", &settings.template_date, group::kData,
       "date of strftime_now() in the chat template, YYYY-MM-DD", Range(), "today"},
      {"add-tokens", &settings.add_tokens, group::kData,
       "special tokens to add, as A,B (\\, is a comma), or auto: those of the named --template",
       Range(), "none"},
      {"loss-on",
       named("loss-on", settings.loss_on,
             {{"all", data::LossOn::kAll}, {"last", data::LossOn::kLast}}),
       group::kData, "responses of a conversation that carry loss: all or last"},
      {"objective",
       named("objective", settings.objective,
             {{"instruct", data::Objective::kInstruct}, {"lm", data::Objective::kLm}}),
       group::kData, "instruct (loss on responses) or lm (plain text)"},
  };
}

void add_train_option(const Option& option) { added_options().push_back(option); }

Options train_options(TrainSettings& settings) {
  return concat({path_options(settings), model::request_options(settings.upcycle),
                 record_options(settings), training_options(settings),
                 route::request_options(settings.router), run_options(settings), added_options()});
}

std::map<std::string, std::string> read_settings(const std::string& toml,
                                                 const std::string& where) {
  const Json file = parse_toml(toml, where);
  const auto table = file.find("train");
  USER_ERROR_IF(table == file.end() || !table->is_object(), "{}: has no table [train]", where);
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : table->items()) {
    values[key] = toml_text(value);
  }
  return values;
}

double learning_rate(const TrainSettings& settings, int64_t step) {
  constexpr double kWsdDecay = 0.1;  // final part of the run (MiniCPM 2024, section 4.3)
  const double lr = settings.lr, min_lr = *settings.min_lr;
  const int64_t warmup = settings.warmup, last = *settings.steps - 1;
  if (step < warmup) {
    return lr * (step + 1) / warmup;
  }
  switch (settings.schedule) {
    case ScheduleKind::kCosine:
      return min_lr + (lr - min_lr) * 0.5 *
                          (1.0 + std::cos(std::numbers::pi * progress(step, warmup, last)));
    case ScheduleKind::kLinear:
      return lr + (min_lr - lr) * progress(step, warmup, last);
    case ScheduleKind::kWsd: {
      const auto decay = static_cast<int64_t>(std::ceil(kWsdDecay * *settings.steps));
      return lr + (min_lr - lr) * progress(step, std::max(warmup, last - decay), last);
    }
    default:
      return lr;
  }
}

data::Template parse_template(const TrainSettings& settings) {
  return data::Template::parse(
      settings.text_template, settings.model,
      data::parse_chat_options(settings.template_arguments, settings.template_date));
}

void check_numbers(const TrainSettings& settings) {
  USER_ERROR_IF(settings.steps && settings.epochs, "--steps and --epochs: give one of them");
  TrainSettings checked = settings;  // options refer to mutable members
  check_ranges(train_options(checked));
  USER_ERROR_IF(settings.min_lr && *settings.min_lr > settings.lr,
                "--min-lr {} is above --lr {}; the rate falls from the one to the other",
                *settings.min_lr, settings.lr);
  model::check_precision(settings.compute.precision, settings.on_cuda);
  model::check_lora(settings.lora);
  data::parse_sources(settings.data);
  data::parse_columns(settings.columns);
  USER_ERROR_IF(settings.overlong != data::Overlong::kError && !settings.seq_len,
                "--overlong needs --seq-len: the number of tokens that it allows");
  parse_template(settings);
  check_evaluation(settings.evaluation);
}

TrainSettings resolve(TrainSettings settings, const model::ModelConfig& config,
                      const data::Examples& examples) {
  check_numbers(settings);
  resolve_batches(settings);
  resolve_length(settings, config);
  settings.pack =
      settings.pack.value_or(examples.all_rows ? data::Pack::kNone : data::Pack::kStream);
  if (settings.lora.rank > 0) {
    settings.lora.alpha = settings.lora.scale() * settings.lora.rank;
  }
  settings.min_lr = settings.min_lr.value_or(settings.lr / 10);
  if (!settings.steps && !settings.epochs) {
    settings.epochs = 1;
  }
  return settings;
}

EvaluationSettings resolve_evaluation(EvaluationSettings settings, int64_t steps) {
  constexpr int64_t kRows = 64;
  if (!settings.data.empty() && !settings.rows) {
    settings.rows = kRows;
  }
  if (settings.any() && !settings.every) {
    settings.every = std::max<int64_t>(1, steps / 10);
  }
  return settings;
}

std::string to_toml(const TrainSettings& settings) {
  TrainSettings recorded = settings;  // options refer to mutable members
  return fmt::format(
      "# moe {}: again with `moe train --config FILE --force`, or another -o{}\n[train]\n{}",
      kVersion,
      settings.changes_gate ? " and the --force that lets the router change the folder's gate" : "",
      toml_lines(train_options(recorded)));
}

void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved) {
  const route::RouterSettings& router = resolved.router;
  const route::RouterFamily& family = *router.family;
  const bool is_same_family = router.family == stored.router.family;
  const bool has_same_bias = router.bias_rate.has_value() == stored.router.bias_rate.has_value();
  // `lacking` describes a router without the loss. An `is_optional` coefficient that is 0 by
  // default and by setting stays unset: it is not printed.
  const auto fill = [&](std::optional<double>& coefficient, const char* flag, bool has_loss,
                        double other, const std::string& lacking, bool is_optional = false) {
    if (!has_loss) {
      refuse(coefficient, flag, fmt::format("{} has no {}", to_string(router), lacking));
    }
    const double value = coefficient.value_or(other);
    const bool is_set = has_loss && (!is_optional || value != 0 || other != 0);
    coefficient = is_set ? std::optional(value) : std::nullopt;
  };
  USER_ERROR_IF(settings.lb_group != route::LossGroup::kRank && !family.load_balance_coef &&
                    !family.has_adaptive_l1,
                "--lb-group: {} has no load-balance loss, {}; leave it out", to_string(router),
                family.no_load_balance);
  fill(settings.lb_coef, "--lb-coef", family.load_balance_coef.has_value(),
       is_same_family && has_same_bias ? stored.lb_coef : default_lb_coef(router),
       fmt::format("load-balance loss, {}", family.no_load_balance));
  fill(settings.seq_lb_coef, "--seq-lb-coef", family.load_balance_coef.has_value(),
       is_same_family ? stored.seq_lb_coef : 0,
       fmt::format("load-balance loss within sequences, {}", family.no_load_balance),
       /*is_optional=*/true);
  fill(settings.z_coef, "--z-coef", family.has_softmax_scores, is_same_family ? stored.z_coef : 0,
       "softmax, whose normalizer the z-loss keeps small", /*is_optional=*/true);
  fill(settings.lambda, "--lambda", family.has_adaptive_l1,
       resolved.sets_lambda0 ? router.lambda0 : stored.lambda.value_or(router.lambda0),
       fmt::format("L1 loss that lambda would weigh, only {} has",
                   family_names(&route::RouterFamily::has_adaptive_l1)));
  fill(settings.entropy_coef, "--entropy-coef", family.entropy_coef.has_value(),
       is_same_family ? stored.entropy_coef : default_entropy_coef(router),
       fmt::format("entropy loss, only {} has", family_names(&route::RouterFamily::entropy_coef)));
}

void refuse_coefficients(const TrainSettings& settings) {
  const std::string reason =
      fmt::format("{} is a dense folder and has no router losses", settings.model.string());
  refuse(settings.lb_coef, "--lb-coef", reason);
  refuse(settings.entropy_coef, "--entropy-coef", reason);
  refuse(settings.z_coef, "--z-coef", reason);
  refuse(settings.seq_lb_coef, "--seq-lb-coef", reason);
  refuse(settings.lambda, "--lambda", reason);
  USER_ERROR_IF(settings.lb_group != route::LossGroup::kRank, "--lb-group: {}; leave it out",
                reason);
}

std::string describe_losses(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains) {
  const route::RouterFamily& family = *router.family;
  std::string words = "language model";
  const char* grouped = settings.lb_group == route::LossGroup::kMicro     ? ", over a micro-batch"
                        : settings.lb_group == route::LossGroup::kRunning ? ", over the step so far"
                        : settings.lb_group == route::LossGroup::kGlobal  ? ", over the step"
                                                                          : "";
  if (family.has_adaptive_l1) {
    words += l1_term(settings.lambda.value_or(0), router, experts, router_trains, grouped);
  }
  if (family.load_balance_coef) {
    const char* counted =
        router.lb_count == route::LbCount::kFirst ? "of first choices" : "of selected experts";
    words += loss_term(settings.lb_coef, fmt::format("load balance ({}{})", counted, grouped));
  }
  if (family.entropy_coef) {
    words += loss_term(settings.entropy_coef, "entropy");
  }
  words += settings.z_coef.value_or(0) != 0 ? loss_term(settings.z_coef, "z-loss") : "";
  words += settings.seq_lb_coef.value_or(0) != 0
               ? loss_term(settings.seq_lb_coef, "load balance within each sequence")
               : "";
  if (router.bias_rate) {
    words += *router.bias_rate == 0 ? "; the router bias stays constant (bias=0)"
             : !router_trains       ? "; the router bias stays constant, as no router is trained"
                              : fmt::format("; the router bias follows the load, by {} a step",
                                            *router.bias_rate);
  }
  return words;
}

}  // namespace moe::train
