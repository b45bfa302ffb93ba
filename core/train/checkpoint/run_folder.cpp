#include "core/train/checkpoint/run_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/io/checksums.h"
#include "core/io/output_checks.h"
#include "core/io/staged_folder.h"
#include "core/train/config/settings.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

constexpr const char *kManifest = ".moe-run", *kSettings = "settings.toml", *kFinal = "final",
                     *kCheckpoints = "checkpoints";
constexpr std::string_view kManifestHead = "moe run 1", kStepPrefix = "step-";
const std::string kCheckpointPrefix = "checkpoints/";

std::string step_name(int64_t step) { return fmt::format("{}{}", kStepPrefix, step); }

// Files that every run has, and "final".
const std::set<std::string> kStandardNames = {"settings.toml", "inputs.json",  "metrics.jsonl",
                                              "samples.jsonl", "starts.jsonl", "report.html",
                                              "trace.json",    "final"};

bool is_manifest_name(std::string_view name) {
  return kStandardNames.count(std::string(name)) > 0 || is_event_name(name) ||
         (name.starts_with(kCheckpointPrefix) &&
          parse_step_name(name.substr(kCheckpointPrefix.size())));
}

// Returns the names in the manifest of `run`; none if it has no manifest. Skips names that no run
// makes, so that a manifest written by others does not cause the removal of their files.
std::set<std::string> read_manifest(const fs::path& run) {
  std::istringstream in(fs::exists(run / kManifest) ? read_small_file(run / kManifest) : "");
  std::set<std::string> names;
  std::string line;
  if (!std::getline(in, line) || line != kManifestHead) {
    return names;
  }
  while (std::getline(in, line)) {
    if (is_manifest_name(line)) {
      names.insert(line);
    }
  }
  return names;
}

void write_manifest(const fs::path& run, const std::set<std::string>& names) {
  io::write_whole(run / kManifest, fmt::format("{}\n{}\n", kManifestHead, fmt::join(names, "\n")));
}

// Returns the settings of a recipe, except those that do not change the results.
std::map<std::string, std::string> result_settings(const std::string& toml,
                                                   const std::string& where) {
  auto values = read_settings(toml, where);
  TrainSettings any;
  for (const auto& key : changeable_keys(train_options(any))) {
    values.erase(key);
  }
  // Removed options: CUDA graphs gave equal results, and `auto` is the only behaviour left.
  values.erase("graph");
  if (const auto products = values.find("expert-products");
      products != values.end() && products->second == toml_string("auto")) {
    values.erase(products);
  }
  return values;
}

// Overload for RUN/settings.toml. Throws UserError if the file cannot be parsed. It is then
// damaged, because a run writes it atomically.
std::map<std::string, std::string> read_run_settings(const fs::path& file) {
  const std::string toml = read_small_file(file);
  try {
    USER_ERROR_IF(!toml.ends_with('\n'), "{}, line {}: breaks off", file.string(),
                  1 + std::ranges::count(toml, '\n'));
    return result_settings(toml, file.string());
  } catch (const UserError& error) {
    throw UserError(
        "{}: the file is damaged; restore it from a backup, give another -o, or use --force to "
        "start over",
        error.what());
  }
}

bool is_folder_name(const std::string& name) {
  return name == kFinal || name.starts_with(kCheckpoints);
}

std::string setting_text(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto entry = values.find(key);
  return entry == values.end() ? "not given" : entry->second;
}

// Returns true if RUN has only the manifest or partial files: the run was killed at its beginning.
bool is_unused(const fs::path& run) {
  const auto is_other = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return !name.starts_with(kManifest) && !name.starts_with(std::string(kSettings) + ".partial-");
  };
  return std::none_of(fs::directory_iterator(run), fs::directory_iterator(), is_other);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::string checkpoint_name(int64_t step) { return kCheckpointPrefix + step_name(step); }

// Returns a manifest for a run of an older version, which wrote none: the standard names, and the
// checkpoints of `steps` whose folders have the files of a checkpoint.
std::set<std::string> guess_manifest(const fs::path& run, const std::vector<int64_t>& steps) {
  std::set<std::string> listed = kStandardNames;
  for (const int64_t step : steps) {
    const fs::path folder = run / checkpoint_name(step);
    if (fs::exists(folder / "state.json") || fs::exists(folder / "checksums.json")) {
      listed.insert(checkpoint_name(step));
    }
  }
  return listed;
}

// Throws UserError if a listed name is not of the kind that a run creates, or if files were added
// to a listed folder.
void check_removable_files(const fs::path& run, const std::set<std::string>& listed) {
  for (const auto& name : listed) {
    const fs::path path = run / name;
    const bool is_folder = is_folder_name(name);
    const fs::file_status status = fs::symlink_status(path);
    USER_ERROR_IF(
        fs::exists(status) && !(is_folder ? fs::is_directory(status) : fs::is_regular_file(status)),
        "{}: is not the {} that the run made and will not be removed; move it", path.string(),
        is_folder ? "folder" : "file");
    if (const auto added = is_folder ? io::find_unlisted(path) : std::nullopt) {
      throw UserError(
          "{}: is not in the list of what the run made there ({}) and would be removed; move it, "
          "or give another -o",
          (path / printable(*added)).string(), (path / io::kOutputList).string());
    }
  }
}

// Throws UserError if `name` exists in `run` and is not listed.
void check_free(const fs::path& run, const fs::path& name, const std::set<std::string>& listed) {
  USER_ERROR_IF(io::is_taken(run / name) && listed.count(name.string()) == 0,
                "{}: is not in the list of what a run of moe made there ({}) and will not be "
                "replaced; move it, or give another -o",
                (run / name).string(), (run / kManifest).string());
}

// Compares the inputs with those recorded, by content. Returns a clause for each key that differs.
// Removes the compared keys from the settings `before` and `now`. Adds a note on moved inputs.
std::vector<std::string> changed_inputs(const std::optional<Inputs>& recorded,
                                        std::map<std::string, std::string>& before,
                                        std::map<std::string, std::string>& now, Inputs& inputs,
                                        std::vector<std::string>& notes) {
  std::vector<std::string> differing, moved;
  for (auto& [key, files] : inputs) {
    if (!recorded || recorded->count(key) == 0 || before.count(key) != now.count(key)) {
      continue;  // not recorded (older version), or set in one of them only
    }
    const bool is_elsewhere = setting_text(before, key) != setting_text(now, key);
    if (const auto difference = find_difference(recorded->at(key), files)) {
      differing.push_back(is_elsewhere
                              ? fmt::format("{} was {}, is {}: {}", key, setting_text(before, key),
                                            setting_text(now, key), *difference)
                              : fmt::format("{}: {}", key, *difference));
    } else if (is_elsewhere) {
      moved.push_back(key);
    }
    before.erase(key);
    now.erase(key);
  }
  if (!moved.empty()) {
    notes.push_back(fmt::format("{}: moved since the run began, with the same content",
                                fmt::join(moved, ", ")));
  }
  return differing;
}

}  // namespace

std::optional<int64_t> parse_step_name(std::string_view name) {
  int64_t step = 0;
  const bool is_step = name.starts_with(kStepPrefix) &&
                       set_value(&step, std::string(name.substr(kStepPrefix.size()))) &&
                       step >= 0 && step_name(step) == name;
  return is_step ? std::optional(step) : std::nullopt;
}

bool is_event_name(std::string_view name) {
  static const std::regex ours(R"(events\.out\.tfevents\.[0-9]+\.[0-9]+\.moe)");
  return std::regex_match(name.begin(), name.end(), ours);
}

RunFolder::RunFolder(fs::path run, const fs::path& model, bool force, std::vector<fs::path> inputs)
    : force_(force), run_(std::move(run)), inputs_(std::move(inputs)) {
  std::error_code error;
  if (!fs::exists(run_, error)) {
    return;
  }
  USER_ERROR_IF(!fs::is_directory(run_), "{}: is a file; name a folder for the run", run_.string());
  USER_ERROR_IF(
      !force && !is_unused(run_) && !fs::exists(run_ / kSettings),
      "{}: exists and is not a run of moe train; give another -o, or --force to start there",
      run_.string());
  USER_ERROR_IF(io::is_within(model, run_), "{}: the model {} lies inside it; give another -o",
                run_.string(), model.string());
  check_names();
}

// Throws UserError if a name that the run needs is taken, or if an input would be removed.
void RunFolder::check_names() const {
  check_no_links();
  const auto listed = read_manifest(run_);
  if (force_) {
    io::check_removable(run_);
    for (const auto& name : kStandardNames) {
      check_free(run_, name, listed);
    }
  }
  if (force_ || !fs::exists(final_model())) {
    io::check_is_own_page(report());
  }
  for (const auto& name : names_in(run_ / kCheckpoints)) {
    if (force_ && parse_step_name(name)) {
      check_free(run_, fs::path(kCheckpoints) / name, listed);
    }
    const fs::path stem = fs::path(name).stem();
    if (parse_step_name(stem.string())) {
      io::check_stageable(run_ / kCheckpoints / stem);
    }
  }
  io::check_stageable(final_model());
  for (const auto& name : listed) {
    io::check_inputs_outside(run_ / name, inputs_);
  }
  if (force_) {
    check_removable_files(run_, listed);
  }
}

// Throws UserError for symbolic links. The folders of a complete run may be links unless it is
// started over, because nothing is written to them.
void RunFolder::check_no_links() const {
  std::error_code error;
  const bool is_complete = !force_ && fs::exists(final_model(), error);
  std::set<std::string> names = kStandardNames;
  names.insert({kManifest, kCheckpoints});
  if (!fs::is_symlink(run_ / kCheckpoints)) {
    for (const int64_t step : saved_steps()) {
      names.insert(checkpoint_name(step));
    }
  }
  for (const auto& name : names) {
    const bool is_folder = is_folder_name(name);
    USER_ERROR_IF(fs::is_symlink(run_ / name) && !(is_complete && is_folder),
                  "{}: is a link to {}, and a run writes and removes nothing through a link; put "
                  "the {} itself there, or give another -o",
                  (run_ / name).string(), fs::read_symlink(run_ / name).string(),
                  is_folder ? "folder" : "file");
  }
}

RunState RunFolder::state(const std::string& settings_toml, Inputs& inputs,
                          std::vector<std::string>& notes) const {
  if (force_ || !fs::exists(run_ / kSettings)) {
    return RunState::kNew;
  }
  const fs::path file = run_ / kSettings;
  auto before = read_run_settings(file), now = result_settings(settings_toml, file.string());
  before.erase("out");  // RUN may have been moved
  now.erase("out");
  std::vector<std::string> differing =
      changed_inputs(read_inputs(this->inputs()), before, now, inputs, notes);
  std::map<std::string, std::string> all = before;
  all.insert(now.begin(), now.end());
  for (const auto& [key, value] : all) {
    const std::string old_value = setting_text(before, key), new_value = setting_text(now, key);
    if (old_value != new_value) {
      differing.push_back(fmt::format("{} was {}, is {}", key, old_value, new_value));
    }
  }
  USER_ERROR_IF(!differing.empty(),
                "{}: the existing run has other settings ({}); give the same settings to resume "
                "it, another -o, or --force to start over",
                run_.string(), fmt::join(differing, "; "));
  return fs::exists(run_ / "final") ? RunState::kDone : RunState::kResumable;
}

void RunFolder::begin(const std::string& settings_toml, RunState state) {
  std::error_code error;
  fs::create_directories(run_, error);
  USER_ERROR_IF(error, "{}: cannot be created: {}", run_.string(), error.message());
  lock_ = io::lock_folder(run_, run_);
  check_names();  // again, now under the lock
  const auto listed = read_manifest(run_);
  if (state == RunState::kNew) {
    for (const auto& name : listed) {
      if (is_folder_name(name)) {
        io::remove_whole(run_ / name, run_);
      } else if (name != kSettings) {  // replaced below; until then it marks the folder as a run
        remove_file(name);
      }
    }
    ::unlinkat(lock_.get(), kCheckpoints, AT_REMOVEDIR);  // fails if it has other files
    write_manifest(run_, kStandardNames);
  } else if (listed.empty()) {
    write_manifest(run_, guess_manifest(run_, saved_steps()));
  }
  remove_leftovers();
  io::write_whole(run_ / kSettings, settings_toml);
}

// Removes RUN/name if it exists. `name` has no slash and is resolved relative to the open RUN.
void RunFolder::remove_file(const std::string& name) const {
  if (::unlinkat(lock_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    fail_file((run_ / name).string(), "cannot be removed");
  }
}

bool RunFolder::is_listed(const std::string& name) const {
  return read_manifest(run_).count(name) > 0;
}

void RunFolder::remove_events() const {
  for (const auto& name : read_manifest(run_)) {
    if (is_event_name(name)) {
      remove_file(name);
    }
  }
}

void RunFolder::remove_leftovers() const {
  for (const auto& name : read_manifest(run_)) {
    if (is_folder_name(name)) {
      io::remove_leftovers(run_ / name, run_);
    }
  }
  const auto is_own = [](std::string_view name) {
    return name == kManifest || is_manifest_name(name);
  };
  io::sweep_partial_files(run_, is_own, /*first_bytes=*/"");  // the lock excludes other runs
}

fs::path RunFolder::checkpoint(int64_t step) const { return run_ / checkpoint_name(step); }

void RunFolder::claim(const fs::path& path) const {
  auto listed = read_manifest(run_);
  const std::string name = path.lexically_relative(run_).string();
  check_free(run_, name, listed);
  if (listed.insert(name).second) {
    write_manifest(run_, listed);
  }
  if (is_folder_name(name)) {
    io::remove_whole(path, run_);
  }
}

std::vector<int64_t> RunFolder::saved_steps() const {
  std::vector<int64_t> steps;
  for (const auto& name : names_in(run_ / kCheckpoints)) {
    if (const auto step = parse_step_name(name)) {
      steps.push_back(*step);
    }
  }
  std::ranges::sort(steps);
  return steps;
}

void RunFolder::keep_newest(int64_t count, int64_t every) const {
  const auto listed = read_manifest(run_);
  auto steps = saved_steps();
  std::erase_if(steps, [&](int64_t step) { return !listed.contains(checkpoint_name(step)); });
  for (size_t i = 0; i + static_cast<size_t>(count) < steps.size(); ++i) {
    if (every == 0 || steps[i] % every != 0) {
      remove_checkpoint(steps[i]);
    }
  }
}

void RunFolder::remove_checkpoint(int64_t step) const {
  if (is_listed(checkpoint_name(step)) && !io::find_unlisted(checkpoint(step))) {
    io::remove_whole(checkpoint(step), run_);
  }
}

std::optional<fs::path> RunFolder::newest_whole(std::vector<std::string>& damaged) const {
  auto steps = saved_steps();
  std::ranges::reverse(steps);
  for (const int64_t step : steps) {
    const auto damage = io::find_damage(checkpoint(step));
    if (!damage) {
      for (auto& sentence : damaged) {
        sentence += "; using an earlier checkpoint";
      }
      return checkpoint(step);
    }
    if (const auto added = io::find_unlisted(checkpoint(step))) {  // the run would overwrite it
      throw UserError(
          "{}: is in a damaged checkpoint, which the resumed run would overwrite, and was not "
          "written by moe; move it and run the same command again",
          (checkpoint(step) / printable(*added)).string());
    }
    damaged.push_back(fmt::format("{}: {}", checkpoint(step).string(), *damage));
  }
  return std::nullopt;
}

}  // namespace moe::train
