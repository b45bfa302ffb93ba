#pragma once
// An output folder that exists whole or not at all: everything goes into OUT.partial, commit()
// syncs and renames it.
//
// A kill leaves                                                             healed by the next
// StagedFolder for OUT
//   before commit: OUT as it was (or none), OUT.partial unfinished          OUT.partial is removed
//   during a replacing commit: OUT old or new, the other in OUT.partial     OUT.partial is removed
//   the same where the file system cannot swap two names (some network      OUT.replaced becomes
//   OUT again; where both ones): in the worst case no OUT, the old one whole in OUT.replaced exist,
//   OUT.replaced is removed

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
  // UserError: OUT is there and not `force` (which replaces it at commit, not before), OUT is a
  // file, OUT holds the working or the home folder, another run is writing it now.
  StagedFolder(std::filesystem::path out, bool force);
  // Without commit: removes the partial folder.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return partial_; }  // write here
  void write_text(const std::string& name, const std::string& text) const;
  void commit();

 private:
  void replace();

  std::filesystem::path out_, partial_, replaced_;
  Descriptor lock_;  // the partial folder itself, locked while this process lives
  bool force_ = false;
  bool owns_partial_ = false;
};

}  // namespace moe::io
