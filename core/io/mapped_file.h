#pragma once
// A file mapped read-only: a write through a span ends the process. Moved, not copied; spans live
// as long as it does. The pages belong to the kernel's cache and count as no anonymous memory of
// ours. A file that another program cuts short while it is mapped is the one fault that cannot be
// checked beforehand: the process ends when it reads there, with a sentence that names the file
// (mapped_ranges.h).

#include <cstddef>
#include <filesystem>
#include <span>

#include "core/io/file.h"
#include "core/io/mapped_ranges.h"

namespace moe::io {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  // Maps a file that is open to read; `path` is its name in errors.
  MappedFile(Descriptor file, const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int descriptor() const { return descriptor_.get(); }  // for copies inside the kernel
  // Gives the pages of `part` back to the kernel's cache, so that a streaming copy keeps none
  // resident. They may be read again: then from the cache, or from the disk if the kernel needed
  // the memory.
  void drop(std::span<const std::byte> part) const;

 private:
  Descriptor descriptor_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedRange range_;
};

}  // namespace moe::io
