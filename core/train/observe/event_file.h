#pragma once
// RUN/events.out.tfevents.*: the scalars of a run for TensorBoard, as TFRecord frames of Event
// messages (tensorflow/core/util/event.proto), one per step. A resumed run appends to its file if
// it is as the checkpoint recorded it; otherwise the file is made again from metrics.jsonl, which
// contains all of its numbers.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/io/file.h"
#include "core/train/checkpoint/run_folder.h"

namespace moe::train {

// Returns the scalars of a line of metrics.jsonl as tag and value: train/loss,
// routing/dropped_share, tasks/piqa/acc, layer_2/experts_per_token. Only a few per layer, to bound
// their number. Skips values that are not finite numbers.
std::vector<std::pair<std::string, double>> scalars(const Json& line);

// End of the file when a checkpoint was saved.
struct EventMark {
  uint64_t bytes = 0;
  uint32_t sum = 0;    // last four bytes: the checksum of the last event
  double clock_s = 0;  // wall time of the last event
};

class EventFile {
 public:
  // Truncates the listed event file that matches `mark` and opens it for appending. Returns nothing
  // if no file matches.
  static std::optional<EventFile> resume(const RunFolder& folder, const EventMark& mark);
  // Removes the listed event files and creates a new, listed one. Its clock starts `seconds`, the
  // duration of the steps that will be appended first, in the past. Throws UserError if it cannot
  // be written.
  EventFile(const RunFolder& folder, double seconds);

  // Appends an event. Throws UserError if the disk is full.
  void append(const Json& line);
  // Syncs the file to the disk. Thread-safe.
  void sync() const { io::sync(descriptor_, file_); }
  EventMark mark() const { return mark_; }

 private:
  EventFile() = default;
  void write(const std::string& event);

  std::filesystem::path file_;
  Descriptor descriptor_;
  EventMark mark_;  // its clock is the run's own time, without pauses
};

}  // namespace moe::train
