#pragma once
// The files that a run appends to while it trains: JSON objects, one a line, each with the "step"
// that it belongs to, in ascending order. A run that goes on from a checkpoint keeps the lines up
// to its step. Memory does not grow with the file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "core/base/json.h"
#include "core/io/file.h"

namespace moe::train {

// Opens `file` to append to, or makes it; a last line that was never finished is cut off.
// UserError: it cannot be written, or is a symbolic link (which could lead out of the run's
// folder).
Descriptor open_lines(const std::filesystem::path& file);

// Where the lines of a file ended when a checkpoint was saved.
struct LinesMark {
  uint64_t bytes = 0;
  int64_t step = -1;  // of the last line; -1: there was none
};

enum class LinesPerStep { kOne, kAny };

class StepLines {
 public:
  // UserError: what open_lines() says.
  StepLines(std::filesystem::path file, LinesPerStep per_step);

  // Cuts the file behind `mark`. False, and nothing is changed, when the file does not end a line
  // of that step there. Reads only that line.
  bool cut_at(const LinesMark& mark);
  // Keeps the lines of steps up to `steps`, whole ones that ascend, and tells `on_line` each of
  // them. Reads all of the file. Returns how many lines before the cut were none of ours; without
  // them the file is written anew, whole or not at all.
  int64_t keep_steps(int64_t steps, const std::function<void(const Json&)>& on_line);

  // `text` is an object without line breaks, of `step`. UserError when the disk is full.
  void append(std::string_view text, int64_t step);
  // On the disk, where a machine that stops does not lose it. Any thread may call it.
  void sync() const { io::sync(descriptor_, file_); }
  LinesMark mark() const { return mark_; }

 private:
  void cut(const LinesMark& mark);

  std::filesystem::path file_;
  LinesPerStep per_step_;
  Descriptor descriptor_;
  LinesMark mark_;
};

}  // namespace moe::train
