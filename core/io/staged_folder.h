#pragma once
// An output folder that appears whole or not at all: everything is written to OUT.partial/new, and
// commit() syncs and renames it. An OUT.partial without the marker below is refused.
//
// State after a kill, and the action of the next StagedFolder for OUT:
//   before commit(): OUT unchanged or absent, new/ incomplete               removes new/
//   during a replacing commit(): OUT old or new, the other in new/          removes new/
//   during it on a file system that cannot swap two names (some network ones):
//     no OUT, the complete old one in old/    restores it with `force`, else refuses and names it
//     OUT new, the old one in old/            removes old/
//   after the renames: OUT new, OUT.partial with only its marker            removes OUT.partial
// A constructor that throws changes nothing, except that it may remove an OUT.partial that has only
// its marker. If commit() fails, it removes the marker and keeps the written folder, so that no
// later run removes it.
//
// The staging area is the sibling OUT.partial:
//
//   .moe-staging  marker: the folder was made by moe for this OUT
//   new/          the folder being written; after a swap of the two names, the replaced folder
//   old/          the folder being replaced, on file systems that cannot swap names
//
// Only these three are removed, and only if OUT.partial belongs to this user and has the marker.
// The folder is created as .OUT.moe-staging, marked and then renamed, and is removed in the reverse
// order, so that OUT.partial always has the marker.
//
// All calls are relative to open descriptors of OUT's parent and of OUT.partial, so that a symbolic
// link that another process creates meanwhile is not followed.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "core/base/read_file.h"

namespace moe::io {

// Returns `out` without a trailing slash, so that a suffix makes a sibling; "." and ".." become
// their real names.
std::filesystem::path normalize_path(const std::filesystem::path& out);

// Returns a descriptor of `folder`, locked until it is closed or the process ends. The descriptor
// is not open if there is no such folder, and not locked on file systems without locks. Throws
// UserError that names `out` if another process holds the lock.
Descriptor lock_folder(const std::filesystem::path& folder, const std::filesystem::path& out);

// A staging area, locked until remove() or destruction. `out` must come from normalize_path(). If
// `root` is not empty, `out` must be below it, and a symbolic link between the two is a UserError.
class StagingArea {
 public:
  enum class Slot { kOut, kNew, kOld };

  // Returns the area that a killed process left, unchanged, or nothing if there is none. Throws
  // UserError if OUT.partial has no marker of this user, has other entries, or is locked by another
  // process.
  static std::optional<StagingArea> find(const std::filesystem::path& out,
                                         const std::filesystem::path& root = {});
  // Empties and returns `left`, or creates an area. Throws UserError like find().
  static StagingArea make_empty(std::optional<StagingArea> left, const std::filesystem::path& out,
                                const std::filesystem::path& root = {});

  std::filesystem::path new_folder() const { return folder_ / "new"; }
  std::filesystem::path old_folder() const { return folder_ / "old"; }
  const std::filesystem::path& folder() const { return folder_; }

  // Returns true if the name exists; a dangling link counts.
  bool has(Slot slot) const;
  void make_new_folder() const;
  // Calls renameat2() with `flag`. Returns false if the file system or kernel lacks the flag.
  // Throws std::filesystem::filesystem_error for other failures.
  bool rename(Slot from, Slot to, unsigned flag = 0) const;
  void remove();        // removes new/, old/, the marker and the folder
  void disown() const;  // removes the marker only, so that no later run removes the folder

 private:
  StagingArea(std::filesystem::path out, Descriptor parent, Descriptor handle);
  static StagingArea create(const std::filesystem::path& out, const std::filesystem::path& root);
  std::pair<int, std::string> location(Slot slot) const;  // open folder and name in it
  void clear() const;

  std::filesystem::path out_, folder_;
  Descriptor parent_;  // the folder that OUT is in
  Descriptor handle_;  // OUT.partial, locked
};

class StagedFolder {
 public:
  // With `force`, commit() replaces an existing OUT. Throws UserError if OUT exists and `force` is
  // false, if OUT is no folder or may not be removed (output_checks.h), or if OUT.partial is not
  // ours or in use by another process.
  StagedFolder(std::filesystem::path out, bool force);
  // Removes the written folder, unless commit() was called.
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return partial_; }  // write here
  void write_text(const std::string& name, const std::string& text) const;
  void commit();  // syncs and renames; throws UserError

 private:
  std::filesystem::path out_, partial_;
  std::optional<StagingArea> area_;  // OUT.partial; empty after commit()
  bool force_ = false;
};

// Returns OUT.partial/old if a process was killed while it replaced `out`.
std::optional<std::filesystem::path> find_old_folder(const std::filesystem::path& out);

// Throws UserError if a StagedFolder for `out` would refuse OUT.partial. Takes no lock, so that
// several processes may call it at once.
void check_stageable(const std::filesystem::path& out);

// Removes OUT.partial and .OUT.moe-staging after a killed write or removal of `out`. Does nothing
// if they have no marker, are locked by another process, or contain the only copy of OUT.
void remove_leftovers(const std::filesystem::path& out, const std::filesystem::path& root);

// Removes `folder` and the leftovers of an unfinished write of `folder`. After a kill `folder` is
// either complete or gone. Does nothing if there is neither. For `root` see StagingArea.
void remove_whole(const std::filesystem::path& folder, const std::filesystem::path& root = {});

}  // namespace moe::io
