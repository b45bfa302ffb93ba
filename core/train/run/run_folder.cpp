#include "core/train/run/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/io/checksums.h"
#include "core/io/staged_folder.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step-";
constexpr const char* kSettings = "settings.toml";

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The "key = value" lines of a recipe of ours, but for keys that change no number.
std::map<std::string, std::string> values_of(const std::string& toml) {
  static const std::set<std::string> free = {"save-every", "save-minutes", "keep",
                                             "keep-every", "threads",      "cache"};
  std::map<std::string, std::string> values;
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos && line[0] != '#' && free.count(line.substr(0, equals)) == 0) {
      values[line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return values;
}

std::set<std::string> keys_of(const std::map<std::string, std::string>& one,
                              const std::map<std::string, std::string>& other) {
  std::set<std::string> keys;
  for (const auto* values : {&one, &other}) {
    for (const auto& [key, value] : *values) {
      keys.insert(key);
    }
  }
  return keys;
}

std::string value_of(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto place = values.find(key);
  return place == values.end() ? "not given" : place->second;
}

// Whether `inner` is `outer` or lies in it, links resolved.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  const fs::path child = fs::weakly_canonical(inner), parent = fs::weakly_canonical(outer);
  return std::mismatch(parent.begin(), parent.end(), child.begin(), child.end()).first ==
         parent.end();
}

std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kStep)) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return step;
}

}  // namespace

RunFolder::RunFolder(fs::path run, const fs::path& model, bool force)
    : force_(force), run_(std::move(run)) {
  std::error_code error;
  if (!fs::exists(run_, error)) {
    return;
  }
  if (!fs::is_directory(run_)) {
    throw UserError("{}: is a file; name a folder for the run", run_.string());
  }
  if (!force && !fs::is_empty(run_) && !fs::exists(run_ / kSettings)) {
    throw UserError(
        "{}: is there already and is no run of moe train; give another -o, or --force to begin "
        "there",
        run_.string());
  }
  if (lies_in(model, run_)) {
    throw UserError("{}: the model {} lies inside it; give another -o", run_.string(),
                    model.string());
  }
}

RunState RunFolder::state(const std::string& settings_toml) const {
  if (force_ || !fs::exists(run_ / kSettings)) {
    return RunState::kNew;
  }
  const auto before = values_of(read_text(run_ / kSettings)), now = values_of(settings_toml);
  std::vector<std::string> differing;
  for (const auto& key : keys_of(before, now)) {
    const std::string old_value = value_of(before, key), new_value = value_of(now, key);
    if (old_value != new_value) {
      differing.push_back(fmt::format("{} was {}, is {}", key, old_value, new_value));
    }
  }
  if (!differing.empty()) {
    throw UserError(
        "{}: a run with other settings is there ({}); give the same to go on, another -o, or "
        "--force to begin anew",
        run_.string(), fmt::join(differing, "; "));
  }
  return fs::exists(run_ / "final") ? RunState::kDone : RunState::kGoesOn;
}

void RunFolder::begin(const std::string& settings_toml, RunState state) {
  std::error_code error;
  fs::create_directories(run_, error);
  if (error) {
    throw UserError("{}: cannot be made: {}", run_.string(), error.message());
  }
  lock_ = io::lock_folder(run_, run_);
  if (state == RunState::kNew) {
    for (const char* name : {kSettings, "metrics.jsonl", "samples.jsonl", "starts.jsonl",
                             "report.html", "checkpoints", "final", "final.partial"}) {
      fs::remove_all(run_ / name);
    }
  }
  const fs::path fresh = run_ / (std::string(kSettings) + ".new");
  io::write_file(fresh, settings_toml);
  fs::rename(fresh, run_ / kSettings);
}

fs::path RunFolder::checkpoint(int64_t step) const {
  return run_ / "checkpoints" / fmt::format("{}{}", kStep, step);
}

std::vector<int64_t> RunFolder::saved_steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_ / "checkpoints", error)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void RunFolder::keep_newest(int64_t count, int64_t every) const {
  const auto steps = saved_steps();
  for (size_t i = 0; i + static_cast<size_t>(count) < steps.size(); ++i) {
    if (every == 0 || steps[i] % every != 0) {
      remove_checkpoint(steps[i]);
    }
  }
}

// Renamed first: a kill in the middle leaves no checkpoint with half its files.
void RunFolder::remove_checkpoint(int64_t step) const {
  const fs::path folder = checkpoint(step);
  const fs::path dying = folder.string() + ".removed";
  fs::remove_all(dying);
  std::error_code error;
  fs::rename(folder, dying, error);  // there may be none
  fs::remove_all(dying);
}

std::optional<fs::path> RunFolder::last_checkpoint() const {
  const auto steps = saved_steps();
  return steps.empty() ? std::nullopt : std::optional<fs::path>(checkpoint(steps.back()));
}

std::optional<fs::path> RunFolder::newest_whole(std::vector<std::string>& damaged) const {
  auto steps = saved_steps();
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    const auto damage = io::find_damage(checkpoint(step));
    if (!damage) {
      return checkpoint(step);
    }
    damaged.push_back(fmt::format("{}: {}; the checkpoint before it is used",
                                  checkpoint(step).string(), *damage));
  }
  return std::nullopt;
}

}  // namespace moe::train
