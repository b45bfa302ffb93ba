#pragma once
// Profiling with LibTorch's profiler: a Chrome trace (chrome://tracing, ui.perfetto.dev) of all
// operations, and the time of the parts of a model, which are named by RECORD_USER_SCOPE.

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

  // Ends the recording and writes the trace unless `file` is empty. Returns the seconds of routing,
  // permute, experts, combine, attention, projections, norm, head, optimizer, and the rest of
  // backward ("backward, other"), by the host's clock. Throws std::runtime_error if writing fails.
  std::map<std::string, double> finish(const std::filesystem::path& file);

 private:
  bool is_recording_ = true;
};

// Returns the seconds of each part of `work`, which computes on `device`; on a GPU by events of the
// stream, including waits for the host. Must not run concurrently with itself.
std::map<std::string, double> part_seconds(const std::function<void()>& work, c10::Device device);

}  // namespace moe::model
