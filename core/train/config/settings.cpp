#include "core/train/config/settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/data/example_set.h"
#include "core/route/router.h"
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
  USER_ERROR_IF(is_given && !has, "{} says how {} is evaluated; give {} too", flag, needed, needed);
}

// Throws UserError for invalid numbers, for flags without the --eval-data or --eval-tasks that they
// belong to, and for a held-out file with a weight.
void check_evaluation(const EvaluationSettings& settings) {
  const bool has_data = !settings.data.empty(), has_tasks = !settings.tasks.empty();
  check_needs(settings.rows.has_value(), "--eval-rows", has_data, "--eval-data");
  check_needs(settings.tasks_limit.has_value(), "--eval-limit", has_tasks, "--eval-tasks");
  check_needs(!settings.tasks_folder.empty(), "--eval-data-dir", has_tasks, "--eval-tasks");
  for (const auto& source : data::parse_sources(settings.data)) {
    USER_ERROR_IF(source.weight > 0,
                  "--eval-data {}: held-out files are not mixed; leave out the weight",
                  source.file.string());
  }
  USER_ERROR_IF(
      settings.every && !settings.any(),
      "--eval-every says how often to evaluate; give --eval-data FILE or --eval-tasks too");
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
  USER_ERROR_IF(*settings.global_batch % *settings.micro_batch != 0,
                "--global-batch {} is no multiple of --micro-batch {}; a step is a whole number of "
                "micro-batches",
                *settings.global_batch, *settings.micro_batch);
}

void resolve_length(TrainSettings& settings, const model::ModelConfig& config) {
  constexpr int64_t kSeqLen = 2048;
  const int64_t longest = config.longest_sequence();
  if (!settings.seq_len) {
    settings.seq_len = std::min(kSeqLen, longest);
  }
  USER_ERROR_IF(
      *settings.seq_len > longest,
      "--seq-len {}: the model was made for {} positions ({} in config.json); give at most that",
      *settings.seq_len, longest,
      config.sliding_window > 0 ? "sliding_window" : "max_position_embeddings");
}

void refuse(const std::optional<double>& coefficient, const char* flag, const std::string& reason) {
  if (const double value = coefficient.value_or(0); value != 0) {
    throw UserError("{} {}: {}; leave it out", flag, value, reason);
  }
}

// Returns the names of the router families that satisfy `has`: "relu".
template <typename Has>
std::string family_names(const Has& has) {
  std::vector<std::string> words;
  for (const auto& family : route::router_families()) {
    if (has(family)) {
      words.push_back(family.word);
    }
  }
  return fmt::format("{}", fmt::join(words, " and "));
}

void refuse_others(const TrainSettings& settings, const route::RouterSettings& router) {
  const std::string name = to_string(router);
  const route::RouterFamily& family = *router.family;
  if (!family.load_balance_coef) {
    refuse(settings.lb_coef, "--lb-coef",
           fmt::format("{} has no load-balance loss, {}", name, family.no_load_balance));
    refuse(settings.seq_lb_coef, "--seq-lb-coef",
           fmt::format("{} has no load-balance loss within sequences, {}", name,
                       family.no_load_balance));
  }
  if (!family.has_softmax_scores) {
    refuse(settings.z_coef, "--z-coef",
           fmt::format("{} has no softmax, whose normaliser the z-loss keeps small", name));
  }
  if (!family.has_adaptive_l1) {
    refuse(settings.lambda, "--lambda",
           fmt::format("{} has no L1 loss that lambda would weigh, only {} has", name,
                       family_names([](const auto& each) { return each.has_adaptive_l1; })));
  }
  if (!family.entropy_coef) {
    refuse(settings.entropy_coef, "--entropy-coef",
           fmt::format("{} has no entropy loss, only {} has", name,
                       family_names([](const auto& each) { return each.entropy_coef; })));
  }
}

// Returns " + 0.01 x load balance (..)", or a clause that the loss is off.
std::string term(const std::optional<double>& coefficient, const std::string& loss) {
  return coefficient.value_or(0) == 0 ? fmt::format("; {} is off (coefficient 0)", loss)
                                      : fmt::format(" + {} x {}", *coefficient, loss);
}

std::string l1_term(double lambda, const route::RouterSettings& router, int64_t experts,
                    bool router_trains) {
  const std::string loss = router.l1 == route::L1Weights::kRefined
                               ? "L1 (refined by load, l1=refined)"
                               : "L1 (l1=plain)";
  if (lambda == 0) {
    return fmt::format("; {} is off (lambda 0 stays 0)", loss);
  }
  if (!router_trains) {
    return fmt::format(" + lambda x {}; lambda stays {}, as no router is trained", loss, lambda);
  }
  const double target = 1.0 - static_cast<double>(router.k) / static_cast<double>(experts);
  return fmt::format(
      " + lambda x {}; lambda is {} at first, then times {} after a step of a sparsity below S* = "
      "1 "
      "- {}/{} = {:.6g}, else divided by it",
      loss, lambda, router.lambda_multiplier, router.k, experts, target);
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
  USER_ERROR_IF(settings.steps && settings.epochs, "--steps and --epochs: give one of them");
  TrainSettings checked = settings;  // options refer to mutable members
  check_ranges(train_options(checked));
  USER_ERROR_IF(settings.min_lr && *settings.min_lr > settings.lr,
                "--min-lr {} is above --lr {}; the rate falls from the one to the other",
                *settings.min_lr, settings.lr);
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

void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved) {
  const route::RouterSettings& router = resolved.router;
  refuse_others(settings, router);
  const route::RouterFamily& family = *router.family;
  const bool keeps = same_family(router, stored.router);
  const auto fill = [&](std::optional<double>& coefficient, bool has_loss, double other) {
    coefficient = has_loss ? std::optional(coefficient.value_or(other)) : std::nullopt;
  };
  fill(settings.lambda, family.has_adaptive_l1,
       resolved.names_lambda0 ? router.lambda0 : stored.lambda.value_or(router.lambda0));
  const bool keeps_bias = router.bias_rate.has_value() == stored.router.bias_rate.has_value();
  fill(settings.lb_coef, family.load_balance_coef.has_value(),
       keeps && keeps_bias ? stored.lb_coef : default_lb_coef(router));
  fill(settings.entropy_coef, family.entropy_coef.has_value(),
       keeps ? stored.entropy_coef : default_entropy_coef(router));
  // Leaves a coefficient unset if it is 0 by default and by setting, so that it is not printed.
  const auto fill_if_used = [&](std::optional<double>& coefficient, bool has_loss, double other) {
    const double value = coefficient.value_or(other);
    const bool is_said = has_loss && (value != 0 || other != 0);
    coefficient = is_said ? std::optional(value) : std::nullopt;
  };
  fill_if_used(settings.z_coef, family.has_softmax_scores, keeps ? stored.z_coef : 0);
  fill_if_used(settings.seq_lb_coef, family.load_balance_coef.has_value(),
               keeps ? stored.seq_lb_coef : 0);
}

void refuse_coefficients(const TrainSettings& settings) {
  const std::string reason = fmt::format(
      "{} is a dense folder, which has no router to weigh a loss of", settings.model.string());
  refuse(settings.lb_coef, "--lb-coef", reason);
  refuse(settings.entropy_coef, "--entropy-coef", reason);
  refuse(settings.z_coef, "--z-coef", reason);
  refuse(settings.seq_lb_coef, "--seq-lb-coef", reason);
  refuse(settings.lambda, "--lambda", reason);
}

std::string describe_losses(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains) {
  const route::RouterFamily& family = *router.family;
  std::string words = "language model";
  if (family.has_adaptive_l1) {
    words += l1_term(settings.lambda.value_or(0), router, experts, router_trains);
  }
  if (family.load_balance_coef) {
    const char* counted =
        router.lb_count == route::LbCount::kFirst ? "of first choices" : "of selected experts";
    words += term(settings.lb_coef, fmt::format("load balance ({})", counted));
  }
  if (family.entropy_coef) {
    words += term(settings.entropy_coef, "entropy");
  }
  for (const auto& [coefficient, loss] :
       {std::pair(settings.z_coef, "z-loss"),
        std::pair(settings.seq_lb_coef, "load balance within each sequence")}) {
    if (coefficient.value_or(0) != 0) {
      words += term(coefficient, loss);
    }
  }
  if (router.bias_rate) {
    if (*router.bias_rate == 0) {
      words += "; a bias of the choice that stands still (bias=0)";
    } else if (!router_trains) {
      words += "; a bias of the choice that keeps its value, as no router is trained";
    } else {
      words += fmt::format("; a bias of the choice balances, by {} a step", *router.bias_rate);
    }
  }
  return words;
}

}  // namespace moe::train
