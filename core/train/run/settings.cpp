#include "core/train/run/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/version.h"

namespace moe::train {

namespace {

constexpr int64_t kMaxCount = int64_t{1} << 40;

void require(bool holds, const char* flag, const std::string& value, const char* rule) {
  if (!holds) {
    throw UserError("{} {}: {}", flag, value, rule);
  }
}

void check_count(const std::optional<int64_t>& value, const char* flag, int64_t least = 1) {
  if (value && (*value < least || *value > kMaxCount)) {
    throw UserError("{} {}: must be a whole number of at least {}", flag, *value, least);
  }
}

void check_not_negative(double value, const char* flag) {
  require(std::isfinite(value) && value >= 0, flag, fmt::format("{}", value),
          "must be 0 or a positive number");
}

void check_deviations(double value, const char* flag) {
  require(std::isfinite(value) && value >= 1, flag, fmt::format("{}", value),
          "must be a number of standard deviations of at least 1; 6 is usual");
}

int64_t divisor_up_to(int64_t number, int64_t limit) {
  int64_t divisor = std::min(number, limit);
  while (number % divisor != 0) {
    --divisor;
  }
  return divisor;
}

void resolve_batches(TrainSettings& settings) {
  constexpr int64_t kMicroBatch = 8;
  if (!settings.micro_batch) {
    settings.micro_batch =
        settings.global_batch ? divisor_up_to(*settings.global_batch, kMicroBatch) : kMicroBatch;
  }
  if (!settings.global_batch) {
    settings.global_batch = settings.micro_batch;
  }
  if (*settings.global_batch % *settings.micro_batch != 0) {
    throw UserError(
        "--global-batch {} is no multiple of --micro-batch {}; a step is a whole number of "
        "micro-batches",
        *settings.global_batch, *settings.micro_batch);
  }
}

void resolve_length(TrainSettings& settings, int64_t longest) {
  constexpr int64_t kSeqLen = 2048;
  if (!settings.seq_len) {
    settings.seq_len = std::min(kSeqLen, longest);
  }
  if (*settings.seq_len > longest) {
    throw UserError(
        "--seq-len {}: the model was made for {} positions (max_position_embeddings in "
        "config.json); give at most that",
        *settings.seq_len, longest);
  }
}

std::string quote(const std::string& text) {
  return Json(text).dump(-1, ' ', false,
                         Json::error_handler_t::replace);  // JSON's escapes are TOML's
}

std::string quote_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const auto& text : texts) {
    list += (list.empty() ? "" : ", ") + quote(text);
  }
  return "[" + list + "]";
}

// "key = value" lines; open values are left out.
class TomlLines {
 public:
  void text(const char* key, const std::string& value) { line(key, quote(value)); }
  template <typename Number>
  void number(const char* key, Number value) {
    line(key, fmt::format("{}", value));
  }
  template <typename Number>
  void number(const char* key, const std::optional<Number>& value) {
    if (value) {
      number(key, *value);
    }
  }
  void line(const char* key, const std::string& value) {
    lines_ += fmt::format("{} = {}\n", key, value);
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

void add_data(TomlLines& toml, const TrainSettings& settings) {
  toml.line("data", quote_list({settings.data.begin(), settings.data.end()}));
  if (settings.format) {
    toml.text("format", data::format_name(*settings.format));
  }
  toml.text("template", settings.text_template);
  toml.text("loss-on", settings.loss_on == data::LossOn::kLast ? "last" : "all");
  if (!settings.cache.empty()) {
    toml.text("cache", settings.cache);
  }
  toml.text("objective", settings.objective == data::Objective::kLm ? "lm" : "instruct");
  if (settings.pack) {
    toml.text("pack", *settings.pack == data::Pack::kStream ? "stream" : "none");
  }
  toml.text("pack-mask", settings.pack_mask == data::PackMask::kDoc ? "doc" : "causal");
  toml.text("shuffle", settings.shuffle ? "on" : "off");
  toml.number("seq-len", settings.seq_len);
  toml.number("micro-batch", settings.micro_batch);
  toml.number("global-batch", settings.global_batch);
  toml.number("steps", settings.steps);
  toml.number("epochs", settings.epochs);
}

void add_compute(TomlLines& toml, const TrainSettings& settings) {
  toml.text("precision", to_string(settings.compute.precision));
  toml.text("recompute", to_string(settings.compute.recompute));
  if (settings.lora.rank > 0) {
    toml.number("lora", settings.lora.rank);
    toml.number("lora-alpha", settings.lora.scale() * static_cast<double>(settings.lora.rank));
    toml.line("lora-on", quote_list(settings.lora.on));
  }
}

void add_optimizer(TomlLines& toml, const TrainSettings& settings) {
  if (!settings.trained.empty()) {
    toml.line("train", quote_list(settings.trained));
  }
  toml.number("lr", settings.lr);
  toml.number("min-lr", settings.min_lr);
  toml.text("schedule", schedule_name(settings.schedule));
  toml.number("warmup", settings.warmup);
  toml.number("weight-decay", settings.adamw.weight_decay);
  toml.text("decay-embeddings", settings.adamw.decay_embeddings ? "on" : "off");
  toml.number("beta1", settings.adamw.beta1);
  toml.number("beta2", settings.adamw.beta2);
  toml.number("eps", settings.adamw.eps);
  toml.number("clip", settings.clip);
  toml.number("skip-outliers", settings.skip_outliers);
  toml.text("optimizer-state", settings.adamw.moments == MomentType::kBF16 ? "bf16" : "fp32");
}

void add_router(TomlLines& toml, const TrainSettings& settings) {
  if (!settings.router.router.empty()) {
    toml.text("router", settings.router.router);
  }
  if (!settings.router.cf.empty()) {
    toml.text("cf", settings.router.cf);
  }
  toml.number("ep-ranks", settings.router.ep_ranks);
  toml.number("lb-coef", settings.lb_coef);
  toml.number("entropy-coef", settings.entropy_coef);
  toml.number("lambda", settings.lambda);
}

void add_evaluation(TomlLines& toml, const EvaluationSettings& evaluation) {
  if (!evaluation.data.empty()) {
    toml.line("eval-data", quote_list({evaluation.data.begin(), evaluation.data.end()}));
  }
  toml.number("eval-rows", evaluation.rows);
  if (!evaluation.tasks.empty()) {
    toml.line("eval-tasks", quote_list(evaluation.tasks));
  }
  if (!evaluation.tasks_folder.empty()) {
    toml.text("eval-data-dir", evaluation.tasks_folder.string());
  }
  toml.number("eval-limit", evaluation.tasks_limit);
  toml.number("eval-every", evaluation.every);
}

}  // namespace

void check_numbers(const TrainSettings& settings) {
  if (settings.steps && settings.epochs) {
    throw UserError("--steps and --epochs: give one of them");
  }
  check_count(settings.steps, "--steps");
  check_count(settings.micro_batch, "--micro-batch");
  check_count(settings.global_batch, "--global-batch");
  check_count(settings.seq_len, "--seq-len", 2);
  check_count(settings.save_every, "--save-every");
  check_count(settings.keep, "--keep");
  check_count(settings.keep_every, "--keep-every", 0);
  if (settings.save_minutes) {
    require(std::isfinite(*settings.save_minutes) && *settings.save_minutes > 0, "--save-minutes",
            fmt::format("{}", *settings.save_minutes), "must be more than 0");
  }
  check_count(settings.warmup, "--warmup", 0);
  if (settings.epochs) {
    require(std::isfinite(*settings.epochs) && *settings.epochs > 0 && *settings.epochs < 1e9,
            "--epochs", fmt::format("{}", *settings.epochs), "must be a positive number");
  }
  check_not_negative(settings.lr, "--lr");
  check_not_negative(settings.min_lr.value_or(0), "--min-lr");
  check_not_negative(settings.clip, "--clip");
  check_not_negative(settings.adamw.weight_decay, "--weight-decay");
  check_not_negative(settings.adamw.eps, "--eps");
  check_not_negative(settings.lb_coef.value_or(0), "--lb-coef");
  check_not_negative(settings.entropy_coef.value_or(0), "--entropy-coef");
  check_not_negative(settings.lambda.value_or(0), "--lambda");
  check_deviations(settings.skip_outliers.value_or(1), "--skip-outliers");
  for (const auto& [flag, beta] :
       {std::pair("--beta1", settings.adamw.beta1), std::pair("--beta2", settings.adamw.beta2)}) {
    require(beta >= 0 && beta < 1, flag, fmt::format("{}", beta), "must lie in [0, 1)");
  }
  if (settings.min_lr && *settings.min_lr > settings.lr) {
    throw UserError("--min-lr {} is above --lr {}; the rate falls from the one to the other",
                    *settings.min_lr, settings.lr);
  }
  if (settings.compute.precision == model::Precision::kTf32 && !settings.on_cuda) {
    throw UserError(
        "--precision tf32: CUDA cards alone multiply in TF32, and this run is on the CPU; use fp32 "
        "or bf16, or --device cuda");
  }
  model::check_lora(settings.lora);
  data::parse_sources(settings.data);
  data::Template::parse(settings.text_template);
  check_evaluation(settings.evaluation);
}

TrainSettings resolve(TrainSettings settings, const model::ModelConfig& config,
                      const data::Examples& examples) {
  check_numbers(settings);
  resolve_batches(settings);
  resolve_length(settings, config.max_position_embeddings);
  if (!settings.pack) {
    settings.pack = examples.all_rows ? data::Pack::kNone : data::Pack::kStream;
  }
  if (!settings.min_lr) {
    settings.min_lr = settings.lr / 10;
  }
  if (!settings.steps && !settings.epochs) {
    settings.epochs = 1;
  }
  return settings;
}

std::string to_toml(const TrainSettings& settings) {
  TomlLines toml;
  toml.text("model", settings.model.string());
  if (!settings.run.empty()) {
    toml.text("out", settings.run.string());
  }
  add_data(toml, settings);
  add_compute(toml, settings);
  add_optimizer(toml, settings);
  add_router(toml, settings);
  add_evaluation(toml, settings.evaluation);
  toml.number("save-every", settings.save_every);
  toml.number("save-minutes", settings.save_minutes);
  toml.number("keep", settings.keep);
  if (settings.keep_every > 0) {
    toml.number("keep-every", settings.keep_every);
  }
  toml.number("seed", settings.seed);
  if (settings.threads > 0) {
    toml.number("threads", settings.threads);
  }
  if (settings.on_cuda) {
    toml.text("device", "cuda");
  }
  return fmt::format(
      "# moe {}: again with `moe train --config FILE --force`, or another -o{}\n[train]\n{}",
      kVersion,
      settings.changes_gate ? " beside the --force, which lets the router change the folder's gate"
                            : "",
      toml.lines());
}

}  // namespace moe::train
