#pragma once
// An output folder that exists whole or not at all: everything goes into OUT.partial/new, commit()
// syncs and renames it. OUT.partial is ours by its marker (staging_area.h), or it is refused.
// A kill leaves, and the next StagedFolder for OUT that is not refused does:
//   before commit: OUT as it was (or none), new/ unfinished                 removes new/
//   during a replacing commit: OUT old or new, the other in new/            removes new/
//   the same where the file system cannot swap two names (some network ones):
//     no OUT, the old one whole in old/       puts it back with `force`, else says where it is
//     OUT new, the old one in old/            removes old/
// One that is refused has healed and removed nothing. Where commit() fails with the work done,
// what was written stays, without the marker: no later run removes it.

#include <filesystem>
#include <string>

#include "core/io/file.h"

namespace moe::io {

// The descriptor of `folder`, locked until it is closed or the process dies; not open when there is
// no folder. File systems without locks are trusted. UserError, naming `out`: another process holds
// it.
Descriptor lock_folder(const std::filesystem::path& folder, const std::filesystem::path& out);

class StagedFolder {
 public:
  // UserError: OUT is there and not `force` (which replaces it at commit, not before), is no folder
  // or may not be removed (paths.h); OUT.partial is not ours; another run is writing it now.
  StagedFolder(std::filesystem::path out, bool force);
  // Without commit: removes what was written.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return partial_; }  // write here
  void write_text(const std::string& name, const std::string& text) const;
  void commit();

 private:
  void replace();

  std::filesystem::path out_, partial_;
  Descriptor lock_;  // OUT.partial, locked while this process lives
  bool force_ = false;
  bool owns_partial_ = false;
};

}  // namespace moe::io
