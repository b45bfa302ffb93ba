#pragma once
// A run's numbers for TensorBoard: RUN/events.out.tfevents.*, TFRecord frames around Event messages
// (tensorflow/core/util/event.proto), one message a step. A run that goes on appends to its file;
// where that is not as the checkpoint knows it, a new one is made from the lines of metrics.jsonl,
// which say all that is in it.

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

// The curves of one line of metrics.jsonl, as tag and value: train/loss, routing/dropped_share,
// tasks/piqa/acc, layer_2/experts_per_token. Per layer only a few, so that their number stays
// bounded; what is no finite number is left out.
std::vector<std::pair<std::string, double>> curves_of(const Json& line);

// CRC-32C (Castagnoli), as TFRecord has it before masking.
uint32_t crc32c(std::string_view bytes);

// Where the file ended when a checkpoint was saved.
struct EventMark {
  uint64_t bytes = 0;
  uint32_t sum = 0;    // the last four bytes: the checksum of the last event
  double clock_s = 0;  // of the last event
};

class EventFile {
 public:
  // Truncates the event file of the run behind `mark` and appends to it. Returns nothing if no file
  // is as the mark says.
  static std::optional<EventFile> go_on(const RunFolder& folder, const EventMark& mark);
  // Removes the event files in the run's list and begins a new one, which is put into the list. Its
  // first steps took `seconds`: so long ago is its beginning. Throws UserError if it cannot be
  // written.
  EventFile(const RunFolder& folder, double seconds);

  // UserError when the disk is full.
  void append(const Json& line);
  // On the disk, where a machine that stops does not lose it. Any thread may call it.
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
