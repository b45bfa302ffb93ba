#pragma once
// A file that appears whole under its name or not at all. It is written as NAME.partial-XXXXXX and
// renamed by commit(); several processes may do so at once, each with a file of its own, and the
// last one wins. What a killed process left may be removed by the next one that looks
// (sweep_partial_files): name and first bytes tell it from a file of the user, a lock from what is
// still being written.

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/io/file.h"

namespace moe::io {

class PartialFile {
 public:
  // In the folder of `target`, which is there. `mode` as of open(2). UserError when no file can be
  // made in it.
  explicit PartialFile(std::filesystem::path target, mode_t mode = 0666);
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

// Writes a whole small file as a PartialFile, so that its name never stands for half of it, and
// what a link of that name points to is not written to.
void write_whole(const std::filesystem::path& file, const std::string& text);

// A file without a name in `folder`: its bytes are given back when it is closed, by a kill too.
Descriptor make_nameless_file(const std::filesystem::path& folder);

// Removes the partial files of `folder` that no process writes any more: regular files of this
// user, by the name of a target that `is_target` knows, that begin with `first_bytes`. A process
// that was killed before it wrote those leaves an empty file, which stays.
void sweep_partial_files(const std::filesystem::path& folder,
                         const std::function<bool(std::string_view)>& is_target,
                         std::string_view first_bytes);

}  // namespace moe::io
