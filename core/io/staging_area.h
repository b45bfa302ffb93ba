#pragma once
// OUT.partial, the sibling of OUT in which OUT is made and from which it is renamed:
//
//   .moe-staging  the marker: states that the folder is ours, and for which OUT
//   new/          the folder being written; after a swap of two names, the folder that was replaced
//   old/          the folder being replaced, on file systems that cannot swap names
//
// Only these three are removed, and only in a folder of this user with the marker; any other
// OUT.partial stays. The folder is made as .OUT.moe-staging, marked and then renamed, and is
// removed in the reverse order, so that OUT.partial is never without the marker.
//
// All calls are relative to the open parent of OUT and to the open OUT.partial, so that a link that
// appears meanwhile is not followed.

#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/read_file.h"

namespace moe::io {

// Returns `out` without a trailing slash, so that a suffix makes a sibling; "." and ".." become
// their real names.
std::filesystem::path normalized(const std::filesystem::path& out);

// Returns the descriptor of `folder`, locked until it is closed or the process ends; not open if
// there is no such folder. Locks nothing on file systems without locks. Throws UserError naming
// `out` if another process holds the lock.
Descriptor lock_folder(const std::filesystem::path& folder, const std::filesystem::path& out);

// A marked folder, locked while this object lives. `out` is normalized. If `root` is given, `out`
// must be below it, and UserError is thrown if a folder between the two is a symbolic link.
class StagingArea {
 public:
  enum class Slot { kOut, kNew, kOld };

  // Takes over an area with the open folder that release() returned.
  StagingArea(std::filesystem::path out, Descriptor handle);
  // Returns the area that a killed process left; nothing if there is none. Changes nothing. Throws
  // UserError if OUT.partial is not ours or holds other names, or if another process holds it.
  static std::optional<StagingArea> find(const std::filesystem::path& out,
                                         const std::filesystem::path& root = {});
  // Returns `left`, emptied, or a new area. Throws UserError as find() does.
  static StagingArea emptied(std::optional<StagingArea> left, const std::filesystem::path& out,
                             const std::filesystem::path& root = {});

  std::filesystem::path fresh() const { return folder_ / "new"; }
  std::filesystem::path replaced() const { return folder_ / "old"; }
  const std::filesystem::path& folder() const { return folder_; }

  // Returns true if the name exists; a dangling link counts.
  bool has(Slot slot) const;
  void make_fresh() const;
  // Calls renameat2() with `flag`. Returns false if the file system or kernel lacks the flag.
  // Throws std::filesystem::filesystem_error if the call fails.
  bool rename(Slot from, Slot to, unsigned flag = 0) const;
  Descriptor release() { return std::move(handle_); }
  void remove();        // removes new/, old/, the marker and the folder
  void disown() const;  // removes the marker alone, so that no later run removes the folder

 private:
  StagingArea(std::filesystem::path out, Descriptor parent, Descriptor handle);
  static StagingArea create(const std::filesystem::path& out, const std::filesystem::path& root);
  std::pair<int, std::string> location(Slot slot) const;  // open folder and name in it
  void clear() const;

  std::filesystem::path out_, folder_;
  Descriptor parent_;  // the folder that OUT is in
  Descriptor handle_;  // OUT.partial, locked
};

// Returns the old folder of a process that was killed while it replaced `out`, if there is one.
std::optional<std::filesystem::path> find_replaced(const std::filesystem::path& out);

// Throws UserError if a StagedFolder for `out` would refuse OUT.partial. Takes no lock, so several
// processes may call it at once.
void check_stageable(const std::filesystem::path& out);

// Removes what a killed write or removal of `out` left in OUT.partial and .OUT.moe-staging, except
// what is not ours, what another process holds, and the only copy of OUT.
void remove_leftovers(const std::filesystem::path& out, const std::filesystem::path& root);

// Removes `folder`, so that a kill leaves it whole or gone, and the leftovers of an unfinished
// write of it. Does nothing if there is neither. `root` as for StagingArea.
void remove_whole(const std::filesystem::path& folder, const std::filesystem::path& root = {});

}  // namespace moe::io
