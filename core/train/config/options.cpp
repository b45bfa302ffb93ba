#include "core/train/config/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/route/router_override.h"

namespace moe::train {

namespace {

constexpr const char* kRectifyRouter = "Rectify-Router";
constexpr const char* kAdamW = "torch's AdamW";
constexpr const char* kFromModel = "the model's";

// Range of --skip-outliers.
Range deviations() {
  Range range = number_from(1);
  range.rule = "must be a number of standard deviations of at least 1; 6 is usual";
  return range;
}

Range below_one() {
  Range range = number_between(0, std::nextafter(1.0, 0.0));
  range.rule = "must lie in [0, 1)";
  return range;
}

Choice on_or_off(const char* name, bool& member) {
  return choice<bool, bool>(name, member, {{"on", true}, {"off", false}});
}

Options model_options(TrainSettings& settings) {
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
  };
}

Options data_options(TrainSettings& settings) {
  return {
      {"data", &settings.data, group::kData,
       "training files, plain, gzip or zstd; FILE:WEIGHT mixes several (required)"},
      {.name = "format",
       .member = choice(settings.format, data::parse_format, data::format_name),
       .group = group::kData,
       .help = "alpaca, openorca, dolly, pairs, sharegpt, messages, text or rows",
       .fallback = "detected from the first record"},
      {.name = "template",
       .member = &settings.text_template,
       .group = group::kData,
       .help = "prompt template: paper, alpaca, llama2, llama3, chatml, zephyr, mistral, "
               "mistral-v0, mistral-v3, mistral-tekken, mistral-v7, auto (the model's chat "
               "template), or a text with {instruction} and {response}; \\n is a newline",
       .source = kRectifyRouter},
      {"loss-on",
       choice<data::LossOn, data::LossOn>(
           "loss-on", settings.loss_on,
           {{"all", data::LossOn::kAll}, {"last", data::LossOn::kLast}}),
       group::kData, "responses of a conversation that carry loss: all or last"},
      {.name = "cache",
       .member = &settings.cache,
       .group = group::kData,
       .help = "directory of tokenized data, reused by later runs, or off",
       .fallback = "~/.cache/moe/tokens",
       .changes_numbers = false},
      {"objective",
       choice<data::Objective, data::Objective>(
           "objective", settings.objective,
           {{"instruct", data::Objective::kInstruct}, {"lm", data::Objective::kLm}}),
       group::kData, "instruct (loss on responses) or lm (plain text)"},
  };
}

Options batch_options(TrainSettings& settings) {
  return {
      {.name = "pack",
       .member = choice<std::optional<data::Pack>, data::Pack>(
           "pack", settings.pack, {{"stream", data::Pack::kStream}, {"none", data::Pack::kNone}}),
       .group = group::kBatch,
       .help = "stream (concatenate examples and cut) or none (one example per sequence)",
       .fallback = "stream; none for token rows"},
      {"pack-mask",
       choice<data::PackMask, data::PackMask>(
           "pack-mask", settings.pack_mask,
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
      {"steps", &settings.steps, group::kBatch, "optimizer steps", whole_from(1)},
      {"epochs", &settings.epochs, group::kBatch, "passes over the data, instead of --steps",
       positive_number(), "1"},
  };
}

Options compute_options(TrainSettings& settings) {
  const auto has_adapters = [&settings] { return settings.lora.rank > 0; };
  return {
      {"precision", choice(settings.compute.precision, model::parse_precision, model::to_string),
       group::kMemory, "of matrix products: fp32, bf16 (weights stay fp32) or tf32 (CUDA)"},
      {"recompute", choice(settings.compute.recompute, model::parse_recompute, model::to_string),
       group::kMemory,
       "activation recomputation in backward: none, ffn (all but attention) or layer"},
      {.name = "lora",
       .member = &settings.lora.rank,
       .group = group::kMemory,
       .help = "train LoRA adapters of this rank instead of the weights",
       .fallback = "no adapters",
       .is_written = has_adapters},
      {.name = "lora-alpha",
       .member = &settings.lora.alpha,
       .group = group::kMemory,
       .help = "LoRA alpha; adapters are scaled by alpha / rank",
       .fallback = "the rank",
       .is_written = has_adapters},
      {.name = "lora-on",
       .member = &settings.lora.on,
       .group = group::kMemory,
       .help = "modules with adapters: attention, ffn or both",
       .is_written = has_adapters,
       .takes_commas = true},
  };
}

Options optimizer_options(TrainSettings& settings) {
  return {
      {.name = "train",
       .member = &settings.trained,
       .group = group::kModel,
       .help = "parameters to train: experts, router, attention, dense, norms, embeddings, or a "
               "name pattern",
       .fallback = "all",
       .takes_commas = true},
      {"lr", &settings.lr, group::kOptimizer, "peak learning rate", number_from(0), "",
       kRectifyRouter},
      {"min-lr", &settings.min_lr, group::kOptimizer, "learning rate of the last step",
       number_from(0), "lr / 10", kRectifyRouter},
      {.name = "schedule",
       .member = choice<ScheduleKind, ScheduleKind>("schedule", settings.schedule,
                                                    {{"cosine", ScheduleKind::kCosine},
                                                     {"linear", ScheduleKind::kLinear},
                                                     {"constant", ScheduleKind::kConstant},
                                                     {"wsd", ScheduleKind::kWsd}}),
       .group = group::kOptimizer,
       .help = "learning rate schedule: cosine, linear, constant or wsd",
       .source = kRectifyRouter},
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
       deviations(), "off"},
      {"optimizer-state",
       choice<io::DType, io::DType>("optimizer-state", settings.adamw.moments,
                                    {{"fp32", io::DType::kF32}, {"bf16", io::DType::kBF16}}),
       group::kMemory, "dtype of the AdamW moments: fp32 or bf16 (8 or 4 bytes per parameter)"},
  };
}

Options loss_options(TrainSettings& settings) {
  return {
      {"lb-coef", &settings.lb_coef, group::kRouter, "coefficient of the load-balance loss",
       number_from(0), kFromModel},
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
  };
}

Options evaluation_options(EvaluationSettings& evaluation) {
  return {
      {"eval-data", &evaluation.data, group::kTasks,
       "held-out files in the forms of --data, for loss and samples"},
      {"eval-rows", &evaluation.rows, group::kTasks,
       "use the first N sequences of --eval-data; 0 = all", whole_from(0), "64"},
      {.name = "eval-tasks",
       .member = &evaluation.tasks,
       .group = group::kTasks,
       .help = "benchmarks to score during training, as in moe eval --tasks",
       .takes_commas = true},
      {"eval-data-dir", &evaluation.tasks_folder, group::kTasks,
       "directory of benchmark files, as in moe eval --data"},
      {"eval-limit", &evaluation.tasks_limit, group::kTasks,
       "use only the first N questions of each task", whole_from(1)},
      {"eval-every", &evaluation.every, group::kTasks,
       "steps between evaluations; also evaluates before and after the run", whole_from(1),
       "a tenth of the run"},
  };
}

Options saving_options(TrainSettings& settings) {
  return {
      {.name = "save-every",
       .member = &settings.save_every,
       .group = group::kOutput,
       .help = "steps between checkpoints",
       .range = whole_from(1),
       .fallback = "only at the end",
       .changes_numbers = false},
      {.name = "save-minutes",
       .member = &settings.save_minutes,
       .group = group::kOutput,
       .help = "also save a checkpoint every N minutes",
       .range = positive_number(),
       .changes_numbers = false},
      {.name = "keep",
       .member = &settings.keep,
       .group = group::kOutput,
       .help = "keep only the newest N checkpoints",
       .range = whole_from(1),
       .changes_numbers = false},
      {.name = "keep-every",
       .member = &settings.keep_every,
       .group = group::kOutput,
       .help = "also keep checkpoints whose step is a multiple of N",
       .range = whole_from(0),
       .fallback = "none",
       .changes_numbers = false,
       .is_written = [&settings] { return settings.keep_every > 0; }},
  };
}

Options machine_options(TrainSettings& settings) {
  return {
      {"seed", &settings.seed, group::kBatch, "random seed (shuffling, stochastic rounding)"},
      {.name = "threads",
       .member = &settings.threads,
       .group = group::kRanks,
       .help = "CPU threads, at most one per processor",
       .range = whole_between(0, 4096),
       .fallback = "one per core",
       .changes_numbers = false,
       .is_written = [&settings] { return settings.threads > 0; }},
      {.name = "device",
       .member = choice<bool, bool>("device", settings.on_cuda, {{"cpu", false}, {"cuda", true}}),
       .group = group::kRanks,
       .help = "cpu or cuda (one GPU per process)",
       .is_written = [&settings] { return settings.on_cuda; }},
      {.name = "replicas",
       .member = &settings.replicas,
       .group = group::kRanks,
       .help = "data-parallel replicas of the expert-parallel group",
       .fallback = "as few as --ep-ranks allows",
       .changes_numbers = false,
       .is_recorded = false},
      {.name = "shard",
       .member =
           choice<Shard, Shard>("shard", settings.shard,
                                {{"optimizer", Shard::kOptimizer}, {"weights", Shard::kWeights}}),
       .group = group::kRanks,
       .help = "what to shard across processes: optimizer (ZeRO-1) or weights (ZeRO-3, dense "
               "weights and their gradients too)",
       .changes_numbers = false,
       .is_recorded = false},
  };
}

std::string toml_text(const Json& value) {
  if (value.is_array()) {
    std::vector<std::string> texts;
    for (const auto& element : value) {
      texts.push_back(toml_text(element));
    }
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  if (value.is_string()) {
    return toml_string(value.get<std::string>());
  }
  if (value.is_number_integer()) {
    return fmt::format("{}", value.get<int64_t>());
  }
  if (value.is_number()) {
    return fmt::format("{}", value.get<double>());
  }
  return !value.is_boolean() ? "neither text, number, true/false nor a list of these"
         : value.get<bool>() ? "true"
                             : "false";
}

}  // namespace

Options train_options(TrainSettings& settings) {
  return concat({model_options(settings), model::request_options(settings.upcycle),
                 data_options(settings), batch_options(settings), compute_options(settings),
                 optimizer_options(settings), route::request_options(settings.router),
                 loss_options(settings), evaluation_options(settings.evaluation),
                 saving_options(settings), machine_options(settings)});
}

std::string flag_of_member(const Options& options, const void* member) {
  const auto is_of = [&](const auto& candidate) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(candidate)>>) {
      return static_cast<const void*>(candidate) == member;
    } else {
      return false;  // a Choice holds no pointer
    }
  };
  const auto found = std::find_if(options.begin(), options.end(), [&](const Option& option) {
    return std::visit(is_of, option.member);
  });
  MOE_CHECK(found != options.end(), "no option for this member");
  return flag_name(*found);
}

std::map<std::string, std::string> read_settings(const std::string& toml,
                                                 const std::string& where) {
  const Json file = parse_toml(toml, where);
  const auto table = file.find("train");
  if (table == file.end() || !table->is_object()) {
    throw UserError("{}: has no table [train]", where);
  }
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : table->items()) {
    values[key] = toml_text(value);
  }
  return values;
}

}  // namespace moe::train
