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
constexpr const char* kTheFolders = "the folder's";

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
       .help = "the folder to start from",
       .spelled = "MODEL,--model",
       .is_required = true},
      {.name = "out",
       .member = &settings.run,
       .group = group::kOutput,
       .help = "the folder of the run: RUN/final, metrics, settings",
       .spelled = "-o,--out"},
  };
}

Options data_options(TrainSettings& settings) {
  return {
      {.name = "data",
       .member = &settings.data,
       .group = group::kData,
       .help = "data files, gzip and zstd too: Alpaca, OpenOrca, Dolly, prompt pairs, ShareGPT, "
               "chat messages, token rows, text; FILE:WEIGHT mixes several (required)"},
      {.name = "format",
       .member = choice(settings.format, data::parse_format, data::format_name),
       .group = group::kData,
       .help = "alpaca, openorca, dolly, pairs, sharegpt, messages, text or rows",
       .fallback = "told from the first record"},
      {.name = "template",
       .member = &settings.text_template,
       .group = group::kData,
       .help =
           "paper, alpaca, a chat form (llama2, llama3, chatml, zephyr, mistral, mistral-v0, "
           "mistral-v3, mistral-tekken, mistral-v7), auto (that of the folder's chat template), "
           "or a text with {instruction} and {response}; \\n is a newline",
       .source = kRectifyRouter},
      {.name = "loss-on",
       .member = choice<data::LossOn, data::LossOn>(
           "loss-on", settings.loss_on,
           {{"all", data::LossOn::kAll}, {"last", data::LossOn::kLast}}),
       .group = group::kData,
       .help = "all or last: responses of a conversation"},
      {.name = "cache",
       .member = &settings.cache,
       .group = group::kData,
       .help = "where tokens are kept for the next run: a folder, or off",
       .fallback = "~/.cache/moe/tokens",
       .changes_numbers = false},
      {.name = "objective",
       .member = choice<data::Objective, data::Objective>(
           "objective", settings.objective,
           {{"instruct", data::Objective::kInstruct}, {"lm", data::Objective::kLm}}),
       .group = group::kData,
       .help = "instruct (loss on responses) or lm (plain text)"},
  };
}

Options packing_options(TrainSettings& settings) {
  return {
      {.name = "pack",
       .member = choice<std::optional<data::Pack>, data::Pack>(
           "pack", settings.pack, {{"stream", data::Pack::kStream}, {"none", data::Pack::kNone}}),
       .group = group::kBatch,
       .help = "stream (examples joined and cut) or none (one a row)",
       .fallback = "stream; none for token rows"},
      {.name = "pack-mask",
       .member = choice<data::PackMask, data::PackMask>(
           "pack-mask", settings.pack_mask,
           {{"causal", data::PackMask::kCausal}, {"doc", data::PackMask::kDoc}}),
       .group = group::kBatch,
       .help = "causal (a row is one text) or doc (an example sees itself alone)"},
      {.name = "shuffle",
       .member = on_or_off("shuffle", settings.shuffle),
       .group = group::kBatch,
       .help = "on or off: file order"},
  };
}

Options batch_options(TrainSettings& settings) {
  return {
      {.name = "seq-len",
       .member = &settings.seq_len,
       .group = group::kBatch,
       .help = "tokens a row",
       .fallback = "2048, at most what the model was made for",
       .source = kRectifyRouter,
       .range = whole_from(2)},
      {.name = "micro-batch",
       .member = &settings.micro_batch,
       .group = group::kBatch,
       .help = "rows a forward pass",
       .fallback = "8, or the largest divisor of the global batch below",
       .source = kRectifyRouter,
       .range = whole_from(1)},
      {.name = "global-batch",
       .member = &settings.global_batch,
       .group = group::kBatch,
       .help = "rows a step",
       .fallback = "one micro-batch",
       .range = whole_from(1)},
      {.name = "steps",
       .member = &settings.steps,
       .group = group::kBatch,
       .help = "optimizer steps",
       .range = whole_from(1)},
      {.name = "epochs",
       .member = &settings.epochs,
       .group = group::kBatch,
       .help = "instead of --steps: passes over the data",
       .fallback = "1",
       .range = positive_number()},
  };
}

Options compute_options(TrainSettings& settings) {
  const auto has_adapters = [&settings] { return settings.lora.rank > 0; };
  return {
      {.name = "precision",
       .member = choice(settings.compute.precision, model::parse_precision, model::to_string),
       .group = group::kMemory,
       .help = "of products: fp32, bf16 (weights stay fp32) or tf32 (CUDA GPUs)"},
      {.name = "recompute",
       .member = choice(settings.compute.recompute, model::parse_recompute, model::to_string),
       .group = group::kMemory,
       .help = "computed again in backward, for less memory: none, ffn (all but attention) or "
               "layer"},
      {.name = "lora",
       .member = &settings.lora.rank,
       .group = group::kMemory,
       .help = "rank of low-rank adapters to train in place of weights",
       .fallback = "no adapters",
       .is_written = has_adapters},
      {.name = "lora-alpha",
       .member = &settings.lora.alpha,
       .group = group::kMemory,
       .help = "adapters are scaled by alpha / rank",
       .fallback = "the rank",
       .is_written = has_adapters},
      {.name = "lora-on",
       .member = &settings.lora.on,
       .group = group::kMemory,
       .help = "which weights have adapters",
       .is_written = has_adapters,
       .takes_commas = true},
  };
}

Options optimizer_options(TrainSettings& settings) {
  return {
      {.name = "train",
       .member = &settings.trained,
       .group = group::kModel,
       .help = "what trains: experts, router, attention, dense, norms, embeddings, or a pattern of "
               "names",
       .fallback = "everything",
       .takes_commas = true},
      {.name = "lr",
       .member = &settings.lr,
       .group = group::kOptimizer,
       .help = "highest learning rate",
       .source = kRectifyRouter,
       .range = number_from(0)},
      {.name = "min-lr",
       .member = &settings.min_lr,
       .group = group::kOptimizer,
       .help = "learning rate of the last step",
       .fallback = "lr / 10",
       .source = kRectifyRouter,
       .range = number_from(0)},
      {.name = "schedule",
       .member = choice<ScheduleKind, ScheduleKind>("schedule", settings.schedule,
                                                    {{"cosine", ScheduleKind::kCosine},
                                                     {"linear", ScheduleKind::kLinear},
                                                     {"constant", ScheduleKind::kConstant},
                                                     {"wsd", ScheduleKind::kWsd}}),
       .group = group::kOptimizer,
       .help = "cosine, linear, constant or wsd",
       .source = kRectifyRouter},
      {.name = "warmup",
       .member = &settings.warmup,
       .group = group::kOptimizer,
       .help = "steps of linear warm-up",
       .range = whole_from(0)},
      {.name = "weight-decay",
       .member = &settings.adamw.weight_decay,
       .group = group::kOptimizer,
       .help = "decoupled, not on norms and biases",
       .range = number_from(0)},
      {.name = "decay-embeddings",
       .member = on_or_off("decay-embeddings", settings.adamw.decay_embeddings),
       .group = group::kOptimizer,
       .help = "on or off: whether embedding and head decay too"},
  };
}

Options update_options(TrainSettings& settings) {
  return {
      {.name = "beta1",
       .member = &settings.adamw.beta1,
       .group = group::kOptimizer,
       .help = "AdamW's decay of the first moment",
       .source = kAdamW,
       .range = below_one()},
      {.name = "beta2",
       .member = &settings.adamw.beta2,
       .group = group::kOptimizer,
       .help = "AdamW's decay of the second moment",
       .source = kAdamW,
       .range = below_one()},
      {.name = "eps",
       .member = &settings.adamw.eps,
       .group = group::kOptimizer,
       .help = "AdamW's epsilon",
       .source = kAdamW,
       .range = number_from(0)},
      {.name = "clip",
       .member = &settings.clip,
       .group = group::kOptimizer,
       .help = "largest gradient norm, 0 = any",
       .range = number_from(0)},
      {.name = "skip-outliers",
       .member = &settings.skip_outliers,
       .group = group::kOptimizer,
       .help =
           "make no step whose loss or gradient norm lies so many standard deviations above the "
           "mean of the last 128; 6 is usual",
       .fallback = "off",
       .range = deviations()},
      {.name = "optimizer-state",
       .member =
           choice<io::DType, io::DType>("optimizer-state", settings.adamw.moments,
                                        {{"fp32", io::DType::kF32}, {"bf16", io::DType::kBF16}}),
       .group = group::kMemory,
       .help = "fp32 or bf16: AdamW's two moments, 8 or 4 bytes a parameter"},
  };
}

Options loss_options(TrainSettings& settings) {
  return {
      {.name = "lb-coef",
       .member = &settings.lb_coef,
       .group = group::kRouter,
       .help = "weight of the load-balance loss",
       .fallback = kTheFolders,
       .range = number_from(0)},
      {.name = "entropy-coef",
       .member = &settings.entropy_coef,
       .group = group::kRouter,
       .help = "weight of the entropy loss of top-p",
       .fallback = kTheFolders,
       .range = number_from(0)},
      {.name = "z-coef",
       .member = &settings.z_coef,
       .group = group::kRouter,
       .help = "weight of the router z-loss, which keeps logits small; 1e-3 is usual",
       .fallback = "the folder's, at first none",
       .range = number_from(0)},
      {.name = "seq-lb-coef",
       .member = &settings.seq_lb_coef,
       .group = group::kRouter,
       .help = "weight of the load-balance loss within each sequence; 1e-4 is usual",
       .fallback = "the folder's, at first none",
       .range = number_from(0)},
      {.name = "lambda",
       .member = &settings.lambda,
       .group = group::kRouter,
       .help = "relu: weight of L1 in the first step",
       .fallback = "what the folder was trained up to, else the router's lambda0",
       .range = number_from(0)},
  };
}

Options evaluation_options(EvaluationSettings& evaluation) {
  return {
      {.name = "eval-data",
       .member = &evaluation.data,
       .group = group::kTasks,
       .help = "held-out files, read as --data: their loss, and samples"},
      {.name = "eval-rows",
       .member = &evaluation.rows,
       .group = group::kTasks,
       .help = "rows of them, the first ones; 0 = all",
       .fallback = "64",
       .range = whole_from(0)},
      {.name = "eval-tasks",
       .member = &evaluation.tasks,
       .group = group::kTasks,
       .help = "benchmarks to score along the way, named as in moe eval --tasks",
       .takes_commas = true},
      {.name = "eval-data-dir",
       .member = &evaluation.tasks_folder,
       .group = group::kTasks,
       .help = "folder of their files, moe eval's --data"},
      {.name = "eval-limit",
       .member = &evaluation.tasks_limit,
       .group = group::kTasks,
       .help = "only the first N questions of each task",
       .range = whole_from(1)},
      {.name = "eval-every",
       .member = &evaluation.every,
       .group = group::kTasks,
       .help = "steps between evaluations, besides before and after the run",
       .fallback = "a tenth of the run",
       .range = whole_from(1)},
  };
}

Options saving_options(TrainSettings& settings) {
  return {
      {.name = "save-every",
       .member = &settings.save_every,
       .group = group::kOutput,
       .help = "steps between checkpoints",
       .fallback = "only the end",
       .range = whole_from(1),
       .changes_numbers = false},
      {.name = "save-minutes",
       .member = &settings.save_minutes,
       .group = group::kOutput,
       .help = "minutes between checkpoints, besides",
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
       .fallback = "none",
       .range = whole_from(0),
       .changes_numbers = false,
       .is_written = [&settings] { return settings.keep_every > 0; }},
  };
}

Options machine_options(TrainSettings& settings) {
  return {
      {.name = "seed",
       .member = &settings.seed,
       .group = group::kBatch,
       .help = "random seed (shuffling, stochastic rounding)"},
      {.name = "threads",
       .member = &settings.threads,
       .group = group::kRanks,
       .help = "CPU threads, at most one a processor",
       .fallback = "one a core",
       .range = whole_between(0, 4096),
       .changes_numbers = false,
       .is_written = [&settings] { return settings.threads > 0; }},
      {.name = "device",
       .member = choice<bool, bool>("device", settings.on_cuda, {{"cpu", false}, {"cuda", true}}),
       .group = group::kRanks,
       .help = "cpu or cuda, a GPU for each process",
       .is_written = [&settings] { return settings.on_cuda; }},
      {.name = "replicas",
       .member = &settings.replicas,
       .group = group::kRanks,
       .help = "processes that hold the same experts",
       .fallback = "as few as --ep-ranks allows",
       .changes_numbers = false,
       .is_recorded = false},
      {.name = "shard",
       .member =
           choice<Shard, Shard>("shard", settings.shard,
                                {{"optimizer", Shard::kOptimizer}, {"weights", Shard::kWeights}}),
       .group = group::kRanks,
       .help = "optimizer or weights: what processes share out of what all of them train; weights "
               "too, and their gradients, where a GPU cannot hold them",
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
  return joined({model_options(settings), model::request_options(settings.upcycle),
                 data_options(settings), packing_options(settings), batch_options(settings),
                 compute_options(settings), optimizer_options(settings), update_options(settings),
                 route::request_options(settings.router), loss_options(settings),
                 evaluation_options(settings.evaluation), saving_options(settings),
                 machine_options(settings)});
}

std::string flag_of_member(const Options& options, const void* member) {
  const auto is_of = [&](const auto& candidate) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(candidate)>>) {
      return static_cast<const void*>(candidate) == member;
    } else {
      return false;  // a choice sets its member by a function
    }
  };
  const auto found = std::find_if(options.begin(), options.end(), [&](const Option& option) {
    return std::visit(is_of, option.member);
  });
  MOE_CHECK(found != options.end(), "a member without an option");
  return flag_of(*found);
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
