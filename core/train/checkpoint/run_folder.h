#pragma once
// RUN/.moe-run: what a run has made in its folder, so that --force removes that and nothing else.
// The first line is `moe run 1`, every further line a name as below, relative to RUN. A name is
// on the disk before what it names is made.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"
#include "core/train/checkpoint/inputs.h"

namespace moe::train {

inline constexpr const char* kMadeList = ".moe-run";

// "step-N" as a number; none for other names.
std::optional<int64_t> step_of(std::string_view name);
std::string step_name(int64_t step);

// Names of files that a run has always, with "final", the folder of the end.
const std::set<std::string>& run_names();

// Returns true for the names of event files that moe makes:
// "events.out.tfevents.1763800000.4242.moe". Other programs' event files have other endings.
bool is_event_name(std::string_view name);

// The names in RUN's list; none without a list. Names that no run makes are left out, so that a
// list that others wrote removes nothing of theirs.
std::set<std::string> read_made(const std::filesystem::path& run);

// Puts a list with `names` in place of the one that is there.
void write_made(const std::filesystem::path& run, const std::set<std::string>& names);

// RUN, the folder a run of training leaves behind:
//
//   settings.toml        the run as a recipe
//   metrics.jsonl        one object a step
//   events.out.tfevents.* the same for TensorBoard (event_file.h)
//   samples.jsonl        what the model wrote after held-out prompts (evaluator.h)
//   inputs.json          model and data by their content (inputs.h)
//   starts.jsonl         one object each time it began or went on (history.h)
//   report.html          all of it as a page (report.h)
//   checkpoints/step-N/  after N steps: a model folder and what going on needs (snapshot.h)
//   final/               the model folder after the last step, there only when the run came to its
//                        end
//   trace.json           of --profile
//   .moe-run             what of all this the run has made (made_list.h)
//
// A run that is there goes on when it is started again with the same settings, wherever RUN, model
// and data lie by then.

enum class RunState { kNew, kGoesOn, kDone };

class RunFolder {
 public:
  // Throws UserError if RUN is a file, holds `model`, or exists without being a run of ours (and is
  // neither empty nor to be replaced by `force`); if something that is not of this run has a name
  // that the run needs; if a file or folder of a run that is not complete is a symbolic link; if
  // one of `inputs` is in what the run may remove, or `force` would remove the working or the home
  // folder. Writes nothing.
  RunFolder(std::filesystem::path run, const std::filesystem::path& model, bool force,
            std::vector<std::filesystem::path> inputs = {});

  // Whether the run that is there (unless `force`) goes on under these settings. UserError names
  // the settings that differ; those that do not change the numbers (save-every, keep, threads,
  // cache) may.
  //
  // Of RUN, model and data not the paths count but what lies there, where the run recorded that: a
  // file of `inputs` (those of `settings_toml`) that is another than before is named. Digests that
  // are known are put into `inputs`, and `notes` is told in a sentence what has moved.
  RunState state(const std::string& settings_toml, Inputs& inputs,
                 std::vector<std::string>& notes) const;
  // Writes settings.toml; from here on no other process may (UserError). kNew: makes RUN, or
  // removes what an earlier run made in it, by that run's own list (made_list.h).
  void begin(const std::string& settings_toml, RunState state);

  const std::filesystem::path& path() const { return run_; }
  std::filesystem::path metrics() const { return run_ / "metrics.jsonl"; }
  std::filesystem::path samples() const { return run_ / "samples.jsonl"; }
  std::filesystem::path run_history() const { return run_ / "starts.jsonl"; }
  std::filesystem::path inputs() const { return run_ / "inputs.json"; }
  std::filesystem::path report() const { return run_ / "report.html"; }
  std::filesystem::path final_model() const { return run_ / "final"; }
  std::filesystem::path checkpoint(int64_t step) const;
  // Puts `path`, a file or checkpoint that is about to be made, into the run's list. Removes a
  // checkpoint of the run that has the name already, which was damaged. Throws UserError if `path`
  // exists and is not in the list, or if a folder on the way to it is a link.
  void claim(const std::filesystem::path& path) const;
  // Returns true if the run's list has the file `name`.
  bool has_made(const std::string& name) const;
  // Removes the event files that are in the run's list.
  void remove_events() const;
  // Removes what a kill left beside the checkpoints and the final folder of the run's list.
  void remove_leftovers() const;

  std::vector<int64_t> saved_steps() const;  // ascending
  // Of the checkpoints in the run's list, removes older ones but those of steps that `every`
  // divides (0: none stays for that) and those to which files of others were added.
  void keep_newest(int64_t count, int64_t every = 0) const;
  void remove_checkpoint(int64_t step) const;  // nothing happens when the run made none
  std::optional<std::filesystem::path> last_checkpoint() const;
  // The newest checkpoint whose files are as they were written; `damaged` is told of newer ones, a
  // sentence each.
  std::optional<std::filesystem::path> newest_whole(std::vector<std::string>& damaged) const;

 private:
  void check_names() const;
  void check_no_links() const;
  void check_removable_files(const std::set<std::string>& made) const;
  void remove_file(const std::string& name) const;
  std::vector<std::string> changed_inputs(std::map<std::string, std::string>& before,
                                          std::map<std::string, std::string>& now, Inputs& inputs,
                                          std::vector<std::string>& notes) const;
  void check_free(const std::filesystem::path& name, const std::set<std::string>& made) const;
  void remove_made(const std::set<std::string>& made) const;

  bool force_ = false;
  Descriptor lock_;  // RUN itself
  std::filesystem::path run_;
  std::vector<std::filesystem::path> inputs_;
};

}  // namespace moe::train
