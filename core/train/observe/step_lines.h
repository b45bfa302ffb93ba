#pragma once
// Append-only files of a run: JSON lines, each with its "step", in ascending order. A run resumed
// from a checkpoint keeps the lines up to its step. Memory does not depend on the size of the file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "core/base/json.h"
#include "core/io/file.h"

namespace moe::train {

// Opens or creates `file` for appending, and truncates an unfinished last line. Throws UserError if
// it cannot be written, or is a symbolic link (which could lead out of the run's folder).
Descriptor open_lines(const std::filesystem::path& file);

// End of the lines of a file when a checkpoint was saved.
struct LinesMark {
  uint64_t bytes = 0;
  int64_t step = -1;  // of the last line; -1: none
};

enum class LinesPerStep { kOne, kAny };

class StepLines {
 public:
  // Throws the exceptions of open_lines().
  StepLines(std::filesystem::path file, LinesPerStep per_step);

  // Truncates the file at `mark`. Returns false and changes nothing if no line of that step ends
  // there. Reads only that line.
  bool cut_at(const LinesMark& mark);
  // Keeps the valid lines with ascending steps up to `steps`, and calls `on_line` for each. Reads
  // the whole file. Returns the number of invalid lines before the last kept one; if there are any,
  // the file is rewritten without them, atomically.
  int64_t keep_steps(int64_t steps, const std::function<void(const Json&)>& on_line);

  // Appends `text`, a JSON object of `step` without line breaks. Throws UserError if the disk is
  // full.
  void append(std::string_view text, int64_t step);
  // Syncs the file to the disk. Thread-safe.
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
