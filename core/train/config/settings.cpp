#include "core/train/config/settings.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/data/example_set.h"
#include "core/train/config/options.h"

namespace moe::train {

namespace {

// Returns the position of `step` between `first` (0) and `last` (1); 0 if last <= first.
double progress(int64_t step, int64_t first, int64_t last) {
  return last <= first
             ? 0.0
             : std::clamp(static_cast<double>(step - first) / static_cast<double>(last - first),
                          0.0, 1.0);
}

// Throws UserError if the setting of `flag` is given without the one of `needed`.
void check_needs(bool is_given, const std::string& flag, bool has, const std::string& needed) {
  if (is_given && !has) {
    throw UserError("{} says how {} is evaluated; give {} too", flag, needed, needed);
  }
}

// Throws UserError for invalid numbers, for flags without the --eval-data or --eval-tasks that they
// belong to, and for a held-out file with a weight.
void check_evaluation(const EvaluationSettings& settings) {
  using Settings = EvaluationSettings;
  const std::string data = flag_of(&Settings::data), tasks = flag_of(&Settings::tasks);
  const bool has_data = !settings.data.empty(), has_tasks = !settings.tasks.empty();
  check_needs(settings.rows.has_value(), flag_of(&Settings::rows), has_data, data);
  check_needs(settings.tasks_limit.has_value(), flag_of(&Settings::tasks_limit), has_tasks, tasks);
  check_needs(!settings.tasks_folder.empty(), flag_of(&Settings::tasks_folder), has_tasks, tasks);
  for (const auto& source : data::parse_sources(settings.data)) {
    if (source.weight > 0) {
      throw UserError("{} {}: held-out files are not mixed; leave out the weight", data,
                      source.file.string());
    }
  }
  if (settings.every && !settings.any()) {
    throw UserError("{} says how often to evaluate; give {} FILE or {} too",
                    flag_of(&Settings::every), data, tasks);
  }
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

void resolve_length(TrainSettings& settings, const model::ModelConfig& config) {
  constexpr int64_t kSeqLen = 2048;
  const int64_t longest = config.longest_sequence();
  if (!settings.seq_len) {
    settings.seq_len = std::min(kSeqLen, longest);
  }
  if (*settings.seq_len > longest) {
    throw UserError(
        "--seq-len {}: the model was made for {} positions ({} in config.json); give at most that",
        *settings.seq_len, longest,
        config.sliding_window > 0 ? "sliding_window" : "max_position_embeddings");
  }
}

}  // namespace

double Schedule::at(int64_t step) const {
  if (step < warmup) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  const int64_t last = steps - 1;
  switch (kind) {
    case ScheduleKind::kCosine:
      return min_lr + (lr - min_lr) * 0.5 *
                          (1.0 + std::cos(std::numbers::pi * progress(step, warmup, last)));
    case ScheduleKind::kLinear:
      return lr + (min_lr - lr) * progress(step, warmup, last);
    case ScheduleKind::kWsd: {
      const auto decay =
          static_cast<int64_t>(std::ceil(decay_fraction * static_cast<double>(steps)));
      return lr + (min_lr - lr) * progress(step, std::max(warmup, last - decay), last);
    }
    default:
      return lr;
  }
}

void check_numbers(const TrainSettings& settings) {
  if (settings.steps && settings.epochs) {
    throw UserError("--steps and --epochs: give one of them");
  }
  TrainSettings checked = settings;  // options refer to mutable members
  check_ranges(train_options(checked));
  if (settings.min_lr && *settings.min_lr > settings.lr) {
    throw UserError("--min-lr {} is above --lr {}; the rate falls from the one to the other",
                    *settings.min_lr, settings.lr);
  }
  model::check_precision(settings.compute.precision, settings.on_cuda);
  model::check_lora(settings.lora);
  data::parse_sources(settings.data);
  if (settings.text_template != "auto") {  // resolved by data::named_template()
    data::Template::parse(settings.text_template);
  }
  check_evaluation(settings.evaluation);
}

TrainSettings resolve(TrainSettings settings, const model::ModelConfig& config,
                      const data::Examples& examples) {
  check_numbers(settings);
  resolve_batches(settings);
  resolve_length(settings, config);
  if (!settings.pack) {
    settings.pack = examples.all_rows ? data::Pack::kNone : data::Pack::kStream;
  }
  if (settings.lora.rank > 0) {
    settings.lora.alpha = settings.lora.scale() * static_cast<double>(settings.lora.rank);
  }
  if (!settings.min_lr) {
    settings.min_lr = settings.lr / 10;
  }
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
      settings.changes_gate ? " beside the --force, which lets the router change the folder's gate"
                            : "",
      toml_lines(train_options(recorded)));
}

}  // namespace moe::train
