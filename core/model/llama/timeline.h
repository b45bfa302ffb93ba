#pragma once
// Profiling with LibTorch's profiler: a Chrome trace (JSON for chrome://tracing and
// ui.perfetto.dev) of all operations, and the time of the parts of a model, which are named by
// RECORD_USER_SCOPE. Without a Timeline the scopes have no measurable cost.

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace moe::model {

// Records from construction to finish(). At most one exists in a process.
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Ends the recording and writes the trace unless `file` is empty. Returns the seconds of each
  // part by the host's clock: routing, permute, experts, combine, attention, projections, norm,
  // head, optimizer, and the rest of backward ("backward, other"). Throws std::runtime_error if the
  // file cannot be written.
  std::map<std::string, double> finish(const std::filesystem::path& file);

 private:
  bool is_recording_ = true;
};

// Returns the seconds of each part of `work`, which computes on `device`. On a GPU a part is timed
// by events of the stream before and after it, without a profiler, and includes the time in which
// the GPU waits for the host. Must not run concurrently with itself.
std::map<std::string, double> part_seconds(const std::function<void()>& work, c10::Device device);

}  // namespace moe::model
