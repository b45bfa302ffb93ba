#pragma once
// A file that appears whole under its name or not at all. It is written as NAME.partial-XXXXXX and
// renamed by commit(); several processes may do so at once, each with a file of its own, and the
// last one wins. What a killed process left is removed by the next one that looks
// (sweep_partial_files); a lock tells it from what is still being written.

#include <filesystem>

#include "core/io/file.h"

namespace moe::io {

class PartialFile {
 public:
  // In the folder of `target`, which is there. UserError when no file can be made in it.
  explicit PartialFile(std::filesystem::path target);
  ~PartialFile();  // without commit: removes it
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const Descriptor& file() const { return file_; }
  const std::filesystem::path& path() const { return path_; }
  void commit();  // synced and renamed

 private:
  std::filesystem::path target_, path_;
  Descriptor file_;
};

// A file without a name in `folder`: its bytes are given back when it is closed, by a kill too.
Descriptor make_nameless_file(const std::filesystem::path& folder);

void sweep_partial_files(const std::filesystem::path& folder);

}  // namespace moe::io
