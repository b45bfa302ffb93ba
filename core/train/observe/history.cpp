#include "core/train/observe/history.h"

#include <cmath>
#include <fstream>
#include <limits>

#include "core/base/error.h"

namespace moe::train {

void History::add(const Json& line, const std::string& where) {
  constexpr size_t kMostSkipped = 20;
  const int64_t step = get_int(line, "step", where);
  if (step < 0 || (is_begun_ && step <= steps) || step == std::numeric_limits<int64_t>::max()) {
    throw UserError("{}: step {} cannot follow step {}", where, step, steps);
  }
  is_begun_ = true;
  steps = step;
  const bool has_loss = line.value("target_tokens", Json(1)) != 0;  // a step of prompts alone has 0
  for (const auto& [name, value] : line.items()) {
    if (has_loss || name != "loss") {
      add_number(step, name, value);
    }
  }
  const Json tasks = line.value("tasks", Json::object());
  for (const auto& [task, scores] : tasks.items()) {
    for (const auto& [metric, value] : scores.items()) {
      add_number(step, "tasks/" + task + "/" + metric, value);
    }
  }
  loads_.add(step, loads_of(line));
  total_tokens = get_int(line, "total_tokens", where, total_tokens);
  seconds +=
      get_double(line, "seconds", where, 0) + get_double(line, "evaluation_seconds", where, 0);
  const int64_t skipped_now = get_int(line, "skipped_steps", where, skipped_count);
  if (skipped_now > skipped_count && skipped.size() < kMostSkipped) {
    skipped.push_back(step);
  }
  skipped_count = skipped_now;
  skipped_outliers = get_int(line, "skipped_outliers", where, skipped_outliers);
}

void History::add_number(int64_t step, const std::string& name, const Json& value) {
  if (value.is_number() && std::isfinite(value.get<double>())) {
    curves_[name].add(step, value.get<double>());
  }
}

History read_history(const std::filesystem::path& metrics_file) {
  std::ifstream in(metrics_file, std::ios::binary);
  if (!in) {
    throw UserError("{}: cannot be read; name the folder of a run of moe train",
                    metrics_file.string());
  }
  History history;
  int64_t number = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {  // a whole line ends in \n
    const std::string where = fmt::format("{} line {}", metrics_file.string(), ++number);
    history.add(parse_json(line, where), where);
  }
  return history;
}

}  // namespace moe::train
