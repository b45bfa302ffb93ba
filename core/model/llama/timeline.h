#pragma once
// What ran when, and for how long: LibTorch's profiler around some steps. Its record is a Chrome
// trace (JSON; opens in chrome://tracing and ui.perfetto.dev) of every operation, and of the parts
// of a model, which name themselves with RECORD_USER_SCOPE where they compute. Without a Timeline
// such a name costs nothing that can be measured.

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace moe::model {

// Runs from its making to finish(); one at a time in a process.
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Ends the record; writes the trace unless `file` is empty. Returns the seconds of each part by
  // the host's clock: routing, permute, experts, combine, attention, projections, norm, head,
  // optimizer, and what runs in backward besides (backward, other). std::runtime_error: the file
  // cannot be written.
  std::map<std::string, double> finish(const std::filesystem::path& file);

 private:
  bool runs_ = true;
};

// The same parts of `work`, which computes on `device`. On a GPU the host only launches them, so
// each is timed by events of the stream before and behind it, which no profiler slows down; a part
// then also counts what the GPU waits for the host inside it. Not at the same time as another of
// these.
std::map<std::string, double> part_seconds(const std::function<void()>& work, c10::Device device);

}  // namespace moe::model
