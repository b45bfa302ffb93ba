#include "core/train/run/evaluation_settings.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/data/example_set.h"
#include "core/train/run/options.h"

namespace moe::train {

namespace {

// Refuses a setting that was given although what it is about was not.
void check_needs(bool is_given, const std::string& flag, bool has, const std::string& needed) {
  if (is_given && !has) {
    throw UserError("{} says how {} is evaluated; give {} too", flag, needed, needed);
  }
}

}  // namespace

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
