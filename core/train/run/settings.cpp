#include "core/train/run/settings.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/train/run/options.h"

namespace moe::train {

namespace {

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

void check_numbers(const TrainSettings& settings) {
  if (settings.steps && settings.epochs) {
    throw UserError("--steps and --epochs: give one of them");
  }
  TrainSettings checked = settings;  // the table reads and writes
  check_ranges(options_of(checked));
  if (settings.min_lr && *settings.min_lr > settings.lr) {
    throw UserError("--min-lr {} is above --lr {}; the rate falls from the one to the other",
                    *settings.min_lr, settings.lr);
  }
  model::check_precision(settings.compute.precision, settings.on_cuda);
  model::check_lora(settings.lora);
  data::parse_sources(settings.data);
  if (settings.text_template != "auto") {  // which the model's folder says, data::named_template
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

std::string to_toml(const TrainSettings& settings) {
  TrainSettings recorded = settings;  // the table reads and writes
  return fmt::format(
      "# moe {}: again with `moe train --config FILE --force`, or another -o{}\n[train]\n{}",
      kVersion,
      settings.changes_gate ? " beside the --force, which lets the router change the folder's gate"
                            : "",
      toml_lines(options_of(recorded)));
}

}  // namespace moe::train
