#pragma once
// An append-only text log that several processes may write at once and that survives a kill at any
// moment. Every line has a checksum: an incomplete last line is removed, a damaged line is skipped
// and counted. Each line is one write at the end of the file, under a lock.
//
//   line 1    the title of the log
//   others    16 hex digits (checksum_text() of the text), a space, the text

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"

namespace moe::io {

class LineLog {
 public:
  // Opens or creates `file`, with its folders. Throws UserError if it cannot be read or written, if
  // it has another title (it then stays unchanged), or if the disk is full.
  LineLog(std::filesystem::path file, const std::string& title);

  // Returns the texts of the file when it was opened, in order.
  const std::vector<std::string>& lines() const { return lines_; }
  int64_t damaged() const { return damaged_; }  // lines skipped
  const std::filesystem::path& path() const { return path_; }

  // Appends `text`, which must have no line breaks; it survives a kill of the process. Syncs the
  // file every two seconds, so that earlier lines survive a crash of the machine.
  void append(std::string_view text);

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::vector<std::string> lines_;
  int64_t damaged_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace moe::io
