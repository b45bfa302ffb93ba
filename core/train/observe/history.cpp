#include "core/train/observe/history.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/train/observe/panels.h"

namespace moe::train {

namespace {

constexpr size_t kMostCurves = 1000;
constexpr size_t kMostSkipped = 20;

}  // namespace

void History::add(const Json& line, const std::string& where) {
  const int64_t step = get_int(line, "step", where);
  if (step < 0 || (is_begun_ && step <= steps) || step == std::numeric_limits<int64_t>::max()) {
    throw UserError("{}: step {} cannot follow step {}", where, step, steps);
  }
  missing += std::max<int64_t>(0, step - steps - 1);  // steps count from 1; one of 0 may be there
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
  if (line.contains("target_sparsity")) {
    relu_stages_.add(step, get_double(line, "sparsity", where),
                     get_double(line, "target_sparsity", where));
  }
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
  if (!is_drawn(name) || !value.is_number() || !std::isfinite(value.get<double>())) {
    return;
  }
  const auto curve = curves_.find(name);
  if (curve != curves_.end()) {
    curve->second.add(step, value.get<double>());
  } else if (curves_.size() < kMostCurves) {
    curves_[name].add(step, value.get<double>());
  }
}

OrderedJson History::to_json() const {
  OrderedJson curves = OrderedJson::object();
  for (const auto& [name, curve] : curves_) {
    curves[name] = curve.to_json();
  }
  return {{"steps", is_begun_ ? steps : -1},
          {"missing", missing},
          {"total_tokens", total_tokens},
          {"seconds", seconds},
          {"skipped", skipped},
          {"skipped_count", skipped_count},
          {"skipped_outliers", skipped_outliers},
          {"curves", curves},
          {"loads", loads_.to_json()},
          {"samples", samples_.to_json()},
          {"relu_stages", relu_stages_.to_json()}};
}

History History::from_json(const Json& json, const std::string& where) {
  History history;
  const int64_t steps = get_int(json, "steps", where);
  history.is_begun_ = steps >= 0;
  history.steps = std::max<int64_t>(0, steps);
  history.missing = get_int(json, "missing", where);
  history.total_tokens = get_int(json, "total_tokens", where);
  history.seconds = get_double(json, "seconds", where);
  history.skipped = get_ints(json, "skipped", where);
  history.skipped_count = get_int(json, "skipped_count", where);
  history.skipped_outliers = get_int(json, "skipped_outliers", where);
  const Json curves = json.value("curves", Json());
  if (!curves.is_object() || curves.size() > kMostCurves || history.skipped.size() > kMostSkipped) {
    throw UserError("{}: 'curves' must be an object of at most {} curves", where, kMostCurves);
  }
  for (const auto& [name, curve] : curves.items()) {
    history.curves_.emplace(name, Downsampled::from_json(curve, where + ": " + name));
  }
  history.loads_ = LoadMap::from_json(json.value("loads", Json()), where + ": loads");
  history.samples_ = SampleHistory::from_json(json.value("samples", Json()), where + ": samples");
  history.relu_stages_ =
      ReluStages::from_json(json.value("relu_stages", Json()), where + ": relu_stages");
  return history;
}

History read_history(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "metrics.jsonl";
  if (!std::filesystem::exists(file)) {
    throw UserError("{}: no such file; name the folder of a run of moe train", file.string());
  }
  FileReader in(file);
  History history;
  int64_t number = 0;
  for (std::string line; in.read_whole_line(line);) {
    const std::string where = fmt::format("{} line {}", file.string(), ++number);
    history.add(parse_json(line, where), where);
  }
  for_each_sample(run / "samples.jsonl", [&](const TextSample& sample) { history.add(sample); });
  return history;
}

std::vector<Json> read_run_history(const std::filesystem::path& file) {
  std::vector<Json> history;
  if (!std::filesystem::exists(file)) {
    return history;
  }
  FileReader in(file);
  for (std::string line; in.read_whole_line(line);) {
    auto start = try_parse_json(line);
    if (!start || !start->is_object()) {
      break;
    }
    history.push_back(std::move(*start));
  }
  return history;
}

std::string time_text() {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::chrono::system_clock::now()));
}

}  // namespace moe::train
