#pragma once
// A text file that grows by lines while others may write to it too, and that survives a kill at any
// moment. Every line carries its own checksum: what an interrupted write left at the end is cut
// off, a line that was damaged is left out and counted, the others stay. Several processes may
// append at once: each line is one write at the end of the file, under its lock.
//
//   line 1    the title, what the file holds
//   others    16 hex digits, XXH3 at 64 bits of what follows the space; a space; the text

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"

namespace moe::io {

class LineLog {
 public:
  // Opens `file` or makes it, with its folders. UserError: it cannot be read or written, it has
  // another title (then it is left as it is), a full disk.
  LineLog(std::filesystem::path file, const std::string& title);

  // What stood there when it was opened, in order.
  const std::vector<std::string>& lines() const { return lines_; }
  int64_t damaged() const { return damaged_; }      // lines left out
  int64_t cut_bytes() const { return cut_bytes_; }  // of a line that was never finished
  const std::filesystem::path& path() const { return path_; }

  // `text` without line breaks. From then on a killed process does not lose it; every two seconds
  // it goes to the disk itself, where a machine that stops does not lose it either.
  void append(std::string_view text);

 private:
  void read(const std::string& title);

  std::filesystem::path path_;
  Descriptor file_;
  std::vector<std::string> lines_;
  int64_t damaged_ = 0, cut_bytes_ = 0;
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace moe::io
