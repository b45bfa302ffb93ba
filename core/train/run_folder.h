#pragma once
// RUN, the folder a run of training leaves behind:
//
//   settings.toml           the run as a recipe
//   metrics.jsonl           one object a step
//   checkpoints/step-N/     after N steps: a model folder; what resuming needs besides goes inside
//   it, staged with it final/                  the model folder after the last step, there only
//   when the run came to its end

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe::train {

class RunFolder {
 public:
  // UserError when RUN is there already (and not an empty folder) without `force`, is a file, or
  // holds `model`. Writes nothing.
  RunFolder(std::filesystem::path run, const std::filesystem::path& model, bool force);

  // Makes RUN, or removes what an earlier run left in it (only the names above), and writes
  // settings.toml.
  void begin(const std::string& settings_toml) const;

  const std::filesystem::path& path() const { return run_; }
  std::filesystem::path metrics() const { return run_ / "metrics.jsonl"; }
  std::filesystem::path final_model() const { return run_ / "final"; }
  std::filesystem::path checkpoint(int64_t step) const;

  std::vector<int64_t> saved_steps() const;    // ascending
  void keep_newest(int64_t count) const;       // removes older checkpoints
  void remove_checkpoint(int64_t step) const;  // nothing happens when there is none
  std::optional<std::filesystem::path> last_checkpoint() const;

 private:
  std::filesystem::path run_;
};

}  // namespace moe::train
