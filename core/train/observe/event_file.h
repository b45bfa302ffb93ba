#pragma once
// A run's numbers for TensorBoard: RUN/events.out.tfevents.*, TFRecord frames around Event messages
// (tensorflow/core/util/event.proto), one message a step. Everything in it comes from the lines of
// metrics.jsonl, so a run that goes on writes the file anew from them.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

// The curves of one line of metrics.jsonl, as tag and value: train/loss, routing/dropped_share,
// tasks/piqa/acc, layer_2/experts_per_token. Per layer only a few, so that their number stays
// bounded; what is no finite number is left out.
std::vector<std::pair<std::string, double>> curves_of(const Json& line);

// CRC-32C (Castagnoli), as TFRecord has it before masking.
uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Removes the event files of ours in `folder` and begins a new one with the lines of
  // `metrics_file`. UserError when it cannot be written.
  EventFile(const std::filesystem::path& folder, const std::filesystem::path& metrics_file);

  // On the disk when it returns. UserError when the disk is full.
  void append(const Json& line);

 private:
  void write(const std::string& event);

  std::filesystem::path file_;
  std::ofstream out_;
  double clock_s_ = 0;  // of the last event, seconds since 1970: the run's own time, without pauses
};

}  // namespace moe::train
