#pragma once
// A file mapped read-only. Its pages belong to the kernel's page cache and count as no anonymous
// memory of this process.
//
// A mapped file that another program truncates, or whose disk fails, raises SIGBUS when it is read.
// The first mapping installs a handler, which ends the process with exit code 1 after a sentence
// that names the file. A SIGBUS outside every mapping goes to the handler that was there before (a
// sanitizer's, LibTorch's), or has its default effect.

#include <cstddef>
#include <filesystem>
#include <span>

#include "core/base/read_file.h"

namespace moe::io {

struct MappedRange;  // mapped_file.cpp: an entry in the list that the handler of SIGBUS searches

// Moved, not copied. Spans are valid while the object lives. A write through a span ends the
// process.
class MappedFile {
 public:
  // Throws UserError if the file is missing, not a regular file, not readable or cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  // Maps a file that is open for reading; `path` names it in errors.
  MappedFile(Descriptor file, const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int descriptor() const { return descriptor_.get(); }  // for copies inside the kernel
  // Unmaps the pages of `part`, so that a streaming copy keeps none resident. Later reads take them
  // from the page cache, or from the disk.
  void drop(std::span<const std::byte> part) const;

 private:
  Descriptor descriptor_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedRange* range_ = nullptr;
};

}  // namespace moe::io
