#pragma once
// An output folder that appears whole or not at all: everything is written to OUT.partial/new, and
// commit() syncs and renames it. An OUT.partial without the marker of staging_area.h is refused.
//
// State that a kill leaves, and what the next StagedFolder for OUT does with it:
//   before commit(): OUT unchanged or absent, new/ incomplete               removes new/
//   during a replacing commit(): OUT old or new, the other in new/          removes new/
//   the same on file systems that cannot swap two names (some network ones):
//     no OUT, the old one whole in old/       restores it with `force`, else names it
//     OUT new, the old one in old/            removes old/
// A constructor that throws has changed nothing. If commit() fails, the written folder stays,
// without the marker, so that no later run removes it.

#include <filesystem>
#include <optional>
#include <string>

#include "core/io/staging_area.h"

namespace moe::io {

class StagedFolder {
 public:
  // `force` replaces an existing OUT, in commit() and not before. Throws UserError if OUT exists
  // and `force` is false, if OUT is no folder or may not be removed (output_checks.h), if
  // OUT.partial is not ours, or if another process is writing it.
  StagedFolder(std::filesystem::path out, bool force);
  // Removes what was written, unless commit() was called.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return partial_; }  // write here
  void write_text(const std::string& name, const std::string& text) const;
  void commit();

 private:
  std::filesystem::path out_, partial_;
  std::optional<StagingArea> area_;  // OUT.partial; empty after commit()
  bool force_ = false;
};

}  // namespace moe::io
