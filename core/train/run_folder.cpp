#include "core/train/run_folder.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "core/base/error.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step-";

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

RunFolder::RunFolder(fs::path run, const fs::path& model, bool force) : run_(std::move(run)) {
  std::error_code error;
  if (!fs::exists(run_, error)) {
    return;
  }
  if (!fs::is_directory(run_)) {
    throw UserError("{}: is a file; name a folder for the run", run_.string());
  }
  if (!force && !fs::is_empty(run_)) {
    throw UserError("{}: is there already; give another -o, or --force to begin anew",
                    run_.string());
  }
  if (lies_in(model, run_)) {
    throw UserError(
        "{}: the model {} lies inside it; give another -o", run_.string(), model.string());
  }
}

void RunFolder::begin(const std::string& settings_toml) const {
  std::error_code error;
  fs::create_directories(run_, error);
  if (error) {
    throw UserError("{}: cannot be made: {}", run_.string(), error.message());
  }
  for (const char* name :
       {"settings.toml", "metrics.jsonl", "checkpoints", "final", "final.partial"}) {
    fs::remove_all(run_ / name);
  }
  std::ofstream out(run_ / "settings.toml", std::ios::binary);
  out << settings_toml << std::flush;
  if (!out) {
    throw UserError("{}: cannot be written; check permissions and free space",
                    (run_ / "settings.toml").string());
  }
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

void RunFolder::keep_newest(int64_t count) const {
  const auto steps = saved_steps();
  for (size_t i = 0; i + static_cast<size_t>(count) < steps.size(); ++i) {
    remove_checkpoint(steps[i]);
  }
}

void RunFolder::remove_checkpoint(int64_t step) const { fs::remove_all(checkpoint(step)); }

std::optional<fs::path> RunFolder::last_checkpoint() const {
  const auto steps = saved_steps();
  return steps.empty() ? std::nullopt : std::optional<fs::path>(checkpoint(steps.back()));
}

}  // namespace moe::train
