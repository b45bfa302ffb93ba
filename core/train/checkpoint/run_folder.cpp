#include "core/train/checkpoint/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/utf8.h"
#include "core/io/checksums.h"
#include "core/io/output_list.h"
#include "core/io/partial_file.h"
#include "core/io/paths.h"
#include "core/io/staged_folder.h"
#include "core/io/staging_area.h"
#include "core/train/config/options.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHead = "moe run 1";
constexpr std::string_view kCheckpoint = "checkpoints/", kStep = "step-";

bool is_run_name(std::string_view name) {
  return run_names().count(std::string(name)) > 0 || is_event_name(name) ||
         (name.starts_with(kCheckpoint) && step_of(name.substr(kCheckpoint.size())));
}

}  // namespace

std::optional<int64_t> step_of(std::string_view name) {
  int64_t step = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kStep)) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  const bool is_step = error == std::errc() && stop == end && step >= 0 && step_name(step) == name;
  return is_step ? std::optional(step) : std::nullopt;
}

std::string step_name(int64_t step) { return fmt::format("{}{}", kStep, step); }

const std::set<std::string>& run_names() {
  static const std::set<std::string> names = {"settings.toml", "inputs.json",  "metrics.jsonl",
                                              "samples.jsonl", "starts.jsonl", "report.html",
                                              "trace.json",    "final"};
  return names;
}

bool is_event_name(std::string_view name) {
  static const std::regex ours(R"(events\.out\.tfevents\.[0-9]+\.[0-9]+\.moe)");
  return std::regex_match(name.begin(), name.end(), ours);
}

std::set<std::string> read_made(const fs::path& run) {
  std::set<std::string> names;
  if (!fs::exists(run / kMadeList)) {
    return names;
  }
  std::istringstream in(read_small_file(run / kMadeList));
  std::string line;
  if (!std::getline(in, line) || line != kHead) {
    return names;
  }
  while (std::getline(in, line)) {
    if (is_run_name(line)) {
      names.insert(line);
    }
  }
  return names;
}

void write_made(const fs::path& run, const std::set<std::string>& names) {
  std::string text = std::string(kHead) + "\n";
  for (const auto& name : names) {
    text += name + "\n";
  }
  io::write_whole(run / kMadeList, text);
}

namespace fs = std::filesystem;

namespace {

constexpr const char* kSettings = "settings.toml";
constexpr const char* kFinal = "final";
constexpr const char* kCheckpoints = "checkpoints";

// The settings of a recipe of ours, but for those that change no number.
std::map<std::string, std::string> values_of(const std::string& toml, const std::string& where) {
  auto values = read_settings(toml, where);
  TrainSettings any;
  for (const auto& key : free_keys(options_of(any))) {
    values.erase(key);
  }
  // Options of earlier versions: CUDA graphs gave the same numbers, and `auto` is what is left.
  values.erase("graph");
  if (const auto products = values.find("expert-products");
      products != values.end() && products->second == toml_string("auto")) {
    values.erase(products);
  }
  return values;
}

// The same of the file that a run left. It was written whole, so one that does not read is damaged
// and says nothing of what the settings were.
std::map<std::string, std::string> values_of_run(const fs::path& file) {
  const auto damaged = [&](const std::string& what) {
    return UserError(
        "{}: the file is damaged; bring it back from a copy, give another -o, or --force to begin "
        "anew",
        what);
  };
  const std::string toml = read_small_file(file);
  if (!toml.ends_with('\n')) {
    throw damaged(fmt::format("{}, line {}: breaks off", file.string(),
                              1 + std::count(toml.begin(), toml.end(), '\n')));
  }
  try {
    return values_of(toml, file.string());
  } catch (const UserError& error) {
    throw damaged(error.what());
  }
}

std::set<std::string> keys_of(const std::map<std::string, std::string>& left,
                              const std::map<std::string, std::string>& right) {
  std::set<std::string> keys;
  for (const auto* values : {&left, &right}) {
    for (const auto& [key, value] : *values) {
      keys.insert(key);
    }
  }
  return keys;
}

std::string value_of(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto entry = values.find(key);
  return entry == values.end() ? "not given" : entry->second;
}

// Whether RUN holds nothing but the list, or the first files half-made: of a run that was killed
// before it had settings.
bool is_unused(const fs::path& run) {
  const auto is_other = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return !name.starts_with(kMadeList) && !name.starts_with(std::string(kSettings) + ".partial-");
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

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}/{}", kCheckpoints, step_name(step));
}

// The list of a run from before there were lists: its settings are this run's, so what it names as
// every run does is its own, and so are the folders that have what only a checkpoint has.
std::set<std::string> made_before_lists(const fs::path& run) {
  std::set<std::string> made_files = run_names();
  for (const auto& name : names_in(run / kCheckpoints)) {
    const fs::path folder = run / kCheckpoints / name;
    if (step_of(name) &&
        (fs::exists(folder / "state.json") || fs::exists(folder / "checksums.json"))) {
      made_files.insert(fmt::format("{}/{}", kCheckpoints, name));
    }
  }
  return made_files;
}

}  // namespace

RunFolder::RunFolder(fs::path run, const fs::path& model, bool force, std::vector<fs::path> inputs)
    : force_(force), run_(std::move(run)), inputs_(std::move(inputs)) {
  std::error_code error;
  if (!fs::exists(run_, error)) {
    return;
  }
  if (!fs::is_directory(run_)) {
    throw UserError("{}: is a file; name a folder for the run", run_.string());
  }
  if (!force && !is_unused(run_) && !fs::exists(run_ / kSettings)) {
    throw UserError(
        "{}: is there already and is no run of moe train; give another -o, or --force to begin "
        "there",
        run_.string());
  }
  if (io::lies_in(model, run_)) {
    throw UserError("{}: the model {} lies inside it; give another -o", run_.string(),
                    model.string());
  }
  check_names();
}

// What is in the way of the run, or would go with what the run removes.
void RunFolder::check_names() const {
  check_no_links();
  const auto made_files = read_made(run_);
  if (force_) {
    io::check_removable(run_);
    for (const auto& name : run_names()) {
      check_free(name, made_files);
    }
  }
  if (force_ || !fs::exists(final_model())) {
    io::check_is_own_page(report());
  }
  for (const auto& name : names_in(run_ / kCheckpoints)) {
    if (force_ && step_of(name)) {
      check_free(fs::path(kCheckpoints) / name, made_files);
    }
    const fs::path stem = fs::path(name).stem();
    if (step_of(stem.string())) {
      io::check_stageable(run_ / kCheckpoints / stem);
    }
  }
  io::check_stageable(final_model());
  for (const auto& name : made_files) {
    io::check_inputs_outside(run_ / name, inputs_);
  }
  if (force_) {
    check_removable_files(made_files);
  }
}

// A folder of a run that is complete and is not begun anew may be a link: nothing is written there.
void RunFolder::check_no_links() const {
  std::error_code error;
  const bool is_complete = !force_ && fs::exists(final_model(), error);
  std::vector<std::string> names(run_names().begin(), run_names().end());
  names.push_back(kMadeList);
  names.push_back(kCheckpoints);
  if (!fs::is_symlink(run_ / kCheckpoints)) {
    for (const auto& name : names_in(run_ / kCheckpoints)) {
      if (step_of(name)) {
        names.push_back(fmt::format("{}/{}", kCheckpoints, name));
      }
    }
  }
  for (const auto& name : names) {
    const bool is_folder = name == kFinal || name.starts_with(kCheckpoints);
    if (fs::is_symlink(run_ / name) && !(is_complete && is_folder)) {
      throw UserError(
          "{}: is a link to {}, and a run writes and removes nothing through a link: put the {} "
          "itself there, or give another -o",
          (run_ / name).string(), fs::read_symlink(run_ / name).string(),
          is_folder ? "folder" : "file");
    }
  }
}

// Before the first of them is removed: each listed name is what a run makes of it.
void RunFolder::check_removable_files(const std::set<std::string>& made_files) const {
  for (const auto& name : made_files) {
    const fs::path path = run_ / name;
    const bool is_folder = name == kFinal || name.starts_with(kCheckpoints);
    const fs::file_status status = fs::symlink_status(path);
    if (fs::exists(status) &&
        !(is_folder ? fs::is_directory(status) : fs::is_regular_file(status))) {
      throw UserError("{}: is not the {} that the run made and will not be removed; move it",
                      path.string(), is_folder ? "folder" : "file");
    }
    if (const auto added = is_folder ? io::find_unlisted(path) : std::nullopt) {
      throw UserError(
          "{}: is not in the list of what the run made there ({}) and would be removed; move it, "
          "or give another -o",
          (path / printable(*added)).string(), (path / io::kOutputList).string());
    }
  }
}

void RunFolder::check_free(const fs::path& name, const std::set<std::string>& made_files) const {
  if (io::is_taken(run_ / name) && made_files.count(name.string()) == 0) {
    throw UserError(
        "{}: is not in the list of what a run of moe made there ({}) and will not be replaced; "
        "move it, or give another -o",
        (run_ / name).string(), (run_ / kMadeList).string());
  }
}

RunState RunFolder::state(const std::string& settings_toml, Inputs& inputs,
                          std::vector<std::string>& notes) const {
  if (force_ || !fs::exists(run_ / kSettings)) {
    return RunState::kNew;
  }
  const fs::path file = run_ / kSettings;
  auto before = values_of_run(file), now = values_of(settings_toml, file.string());
  before.erase("out");  // RUN is where it is
  now.erase("out");
  std::vector<std::string> differing = changed_inputs(before, now, inputs, notes);
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

// Takes out of `before` and `now` the keys of inputs whose content was compared.
std::vector<std::string> RunFolder::changed_inputs(std::map<std::string, std::string>& before,
                                                   std::map<std::string, std::string>& now,
                                                   Inputs& inputs,
                                                   std::vector<std::string>& notes) const {
  std::vector<std::string> differing, moved;
  const std::optional<Inputs> recorded = read_inputs(this->inputs());
  for (auto& [key, files] : inputs) {
    if (!recorded || recorded->count(key) == 0 || before.count(key) != now.count(key)) {
      continue;  // a run from before there were records, or an option that one of them lacks
    }
    const bool is_elsewhere = value_of(before, key) != value_of(now, key);
    if (const auto difference = find_difference(recorded->at(key), files)) {
      differing.push_back(is_elsewhere
                              ? fmt::format("{} was {}, is {}: {}", key, value_of(before, key),
                                            value_of(now, key), *difference)
                              : fmt::format("{}: {}", key, *difference));
    } else if (is_elsewhere) {
      moved.push_back(key);
    }
    before.erase(key);
    now.erase(key);
  }
  if (!moved.empty()) {
    notes.push_back(fmt::format("{} lie{} elsewhere than before, with the same content",
                                fmt::join(moved, ", "), moved.size() == 1 ? "s" : ""));
  }
  return differing;
}

void RunFolder::begin(const std::string& settings_toml, RunState state) {
  std::error_code error;
  fs::create_directories(run_, error);
  if (error) {
    throw UserError("{}: cannot be made: {}", run_.string(), error.message());
  }
  lock_ = io::lock_folder(run_, run_);
  check_names();  // again: another run may have been here until now
  const auto made_files = read_made(run_);
  if (state == RunState::kNew) {
    remove_made(made_files);
    write_made(run_, run_names());
  } else if (made_files.empty()) {
    write_made(run_, made_before_lists(run_));
  }
  remove_leftovers();
  io::write_whole(run_ / kSettings, settings_toml);
}

// settings.toml goes last of all, when it is replaced: until then this is a run.
void RunFolder::remove_made(const std::set<std::string>& made_files) const {
  for (const auto& name : made_files) {
    if (name == kFinal || name.starts_with(kCheckpoints)) {
      io::remove_whole(run_ / name, run_);
    } else if (name != kSettings) {
      remove_file(name);
    }
  }
  ::unlinkat(lock_.get(), kCheckpoints, AT_REMOVEDIR);  // fails where other files are in it
}

// Nothing happens if there is none. Relative to the open RUN: a name without a slash.
void RunFolder::remove_file(const std::string& name) const {
  if (::unlinkat(lock_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    throw UserError("{}: cannot be removed: {}", (run_ / name).string(), std::strerror(errno));
  }
}

bool RunFolder::has_made(const std::string& name) const { return read_made(run_).count(name) > 0; }

void RunFolder::remove_events() const {
  for (const auto& name : read_made(run_)) {
    if (is_event_name(name)) {
      remove_file(name);
    }
  }
}

void RunFolder::remove_leftovers() const {
  for (const auto& name : read_made(run_)) {
    if (name == kFinal || name.starts_with(kCheckpoints)) {
      io::remove_leftovers(run_ / name, run_);
    }
  }
}

fs::path RunFolder::checkpoint(int64_t step) const { return run_ / checkpoint_name(step); }

void RunFolder::claim(const fs::path& path) const {
  auto made_files = read_made(run_);
  const std::string name = path.lexically_relative(run_).string();
  check_free(name, made_files);
  if (made_files.insert(name).second) {
    write_made(run_, made_files);
  }
  if (name == kFinal || name.starts_with(kCheckpoints)) {
    io::remove_whole(path, run_);
  }
}

std::vector<int64_t> RunFolder::saved_steps() const {
  std::vector<int64_t> steps;
  for (const auto& name : names_in(run_ / kCheckpoints)) {
    if (const auto step = step_of(name)) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void RunFolder::keep_newest(int64_t count, int64_t every) const {
  const auto made_files = read_made(run_);
  auto steps = saved_steps();
  steps.erase(
      std::remove_if(steps.begin(), steps.end(),
                     [&](int64_t step) { return made_files.count(checkpoint_name(step)) == 0; }),
      steps.end());
  for (size_t i = 0; i + static_cast<size_t>(count) < steps.size(); ++i) {
    if (every == 0 || steps[i] % every != 0) {
      remove_checkpoint(steps[i]);
    }
  }
}

void RunFolder::remove_checkpoint(int64_t step) const {
  if (has_made(checkpoint_name(step)) && !io::find_unlisted(checkpoint(step))) {
    io::remove_whole(checkpoint(step), run_);
  }
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
      for (auto& sentence : damaged) {
        sentence += "; the checkpoint before it is used";
      }
      return checkpoint(step);
    }
    if (const auto added = io::find_unlisted(checkpoint(step))) {  // the run would write over it
      throw UserError(
          "{}: was put into a checkpoint of the run, which will be made anew; move it, then give "
          "the same command again",
          (checkpoint(step) / printable(*added)).string());
    }
    damaged.push_back(fmt::format("{}: {}", checkpoint(step).string(), *damage));
  }
  return std::nullopt;
}

}  // namespace moe::train
