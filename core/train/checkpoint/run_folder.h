#pragma once
// RUN, the folder of a training run (its files: cli/README.md, "moe train"), and RUN/.moe-run, the
// manifest of the files and folders that the run created (core/io/formats.md). A name is listed
// before the file or folder is created. --force removes listed names only. A run may be resumed
// after it was moved.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"
#include "core/train/checkpoint/inputs.h"

namespace moe::train {

// Returns N of "step-N"; nothing for other names.
std::optional<int64_t> parse_step_name(std::string_view name);

// Returns true for the names of moe's event files: "events.out.tfevents.1763800000.4242.moe".
bool is_event_name(std::string_view name);

enum class RunState { kNew, kResumable, kDone };

class RunFolder {
 public:
  // Writes nothing. Throws UserError if
  // - RUN is a file, or contains `model`;
  // - RUN exists, is not empty, is not a run of moe, and `force` is false;
  // - a name that the run needs is taken by a file or folder that is not in the manifest;
  // - a file or folder of an incomplete run is a symbolic link;
  // - one of `inputs` is in a file or folder that the run may remove, or `force` would remove the
  //   working directory or the home directory.
  RunFolder(std::filesystem::path run, const std::filesystem::path& model, bool force,
            std::vector<std::filesystem::path> inputs = {});

  // Returns the state of the existing run under the given settings; kNew with `force`. Throws
  // UserError if settings differ that change the results (not save-every, keep, threads, cache), or
  // if the content of `inputs`, the inputs of `settings_toml`, has changed. Adds known digests to
  // `inputs`, and a sentence on moved inputs to `notes`.
  RunState state(const std::string& settings_toml, Inputs& inputs,
                 std::vector<std::string>& notes) const;
  // Locks RUN and writes settings.toml. Throws UserError if another process has locked RUN. kNew:
  // creates RUN, or removes the listed files and folders of the earlier run.
  void begin(const std::string& settings_toml, RunState state);

  const std::filesystem::path& path() const { return run_; }
  std::filesystem::path metrics() const { return run_ / "metrics.jsonl"; }
  std::filesystem::path samples() const { return run_ / "samples.jsonl"; }
  std::filesystem::path run_history() const { return run_ / "starts.jsonl"; }
  std::filesystem::path inputs() const { return run_ / "inputs.json"; }
  std::filesystem::path report() const { return run_ / "report.html"; }
  std::filesystem::path final_model() const { return run_ / "final"; }
  std::filesystem::path checkpoint(int64_t step) const;
  // Adds `path`, a file or checkpoint that will be created, to the manifest. Removes a checkpoint
  // that exists there. Throws UserError if `path` exists and is not listed, or is below a link.
  void claim(const std::filesystem::path& path) const;
  bool is_listed(const std::string& name) const;  // in the manifest
  void remove_events() const;                     // removes the listed event files
  // Removes staging folders that a killed process left next to the listed checkpoints and final/.
  void remove_leftovers() const;

  std::vector<int64_t> saved_steps() const;  // ascending
  // Removes listed checkpoints, except the newest `count`, those of steps that are a multiple of
  // `every` (0: none), and those to which other files were added.
  void keep_newest(int64_t count, int64_t every = 0) const;
  void remove_checkpoint(int64_t step) const;  // no effect if it is not listed
  std::optional<std::filesystem::path> last_checkpoint() const {
    const auto steps = saved_steps();
    return steps.empty() ? std::nullopt : std::optional(checkpoint(steps.back()));
  }
  // Returns the newest checkpoint that matches its checksums. Adds sentences on newer, damaged ones
  // to `damaged`.
  std::optional<std::filesystem::path> newest_whole(std::vector<std::string>& damaged) const;

 private:
  void check_names() const;
  void check_no_links() const;
  void remove_file(const std::string& name) const;

  bool force_ = false;
  Descriptor lock_;  // RUN itself
  std::filesystem::path run_;
  std::vector<std::filesystem::path> inputs_;
};

}  // namespace moe::train
