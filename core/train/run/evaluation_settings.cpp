#include "core/train/run/evaluation_settings.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/data/sources.h"

namespace moe::train {

namespace {

void check_needs(bool given, bool has, const char* flag, const char* needed) {
  if (given && !has) {
    throw UserError("{} says how {} is evaluated; give {} too", flag, needed, needed);
  }
}

}  // namespace

void check_evaluation(const EvaluationSettings& settings) {
  check_needs(settings.rows.has_value(), !settings.data.empty(), "--eval-rows", "--eval-data");
  check_needs(settings.tasks_limit.has_value(), !settings.tasks.empty(), "--eval-limit",
              "--eval-tasks");
  check_needs(!settings.tasks_folder.empty(), !settings.tasks.empty(), "--eval-data-dir",
              "--eval-tasks");
  for (const auto& source : data::parse_sources(settings.data)) {
    if (source.weight > 0) {
      throw UserError("--eval-data {}: held-out files are not mixed; leave out the weight",
                      source.file.string());
    }
  }
  if (settings.every && !settings.any()) {
    throw UserError(
        "--eval-every says how often to evaluate; give --eval-data FILE or --eval-tasks too");
  }
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

bool is_evaluation_due(const EvaluationSettings& settings, int64_t step, int64_t steps) {
  return settings.any() && (step % settings.every.value() == 0 || step == steps);
}

}  // namespace moe::train
