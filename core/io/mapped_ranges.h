#pragma once
// What is mapped, for the handler of SIGBUS: a file that another program cuts short while it is
// mapped, or whose disk fails, raises that signal when it is read. The process then ends with exit
// code 1 after one sentence that names the file, instead of dying without a word.
//
// The handler is installed with the first range. A SIGBUS that belongs to no range here goes to
// whoever handled the signal before (a sanitizer, LibTorch), or ends the process as is its default.

#include <cstddef>
#include <filesystem>
#include <utility>

namespace moe::io {

// Names a range of memory as the pages of `path` while it lives. Moved, not copied. Any thread may
// make and destroy ranges while another one faults.
class MappedRange {
 public:
  MappedRange() = default;  // names nothing
  MappedRange(const void* data, size_t bytes, const std::filesystem::path& path);
  ~MappedRange();
  MappedRange(MappedRange&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  MappedRange& operator=(MappedRange&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  struct Entry;  // mapped_ranges.cpp

 private:
  Entry* entry_ = nullptr;
};

}  // namespace moe::io
