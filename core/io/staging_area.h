#pragma once
// OUT.partial, the folder beside OUT in which OUT is made and from which it is renamed:
//
//   .moe-staging  the marker: says in words that the folder is ours, and for which OUT
//   new/          what is being written; after a swap of two names, the folder that was replaced
//   old/          the folder that is being replaced, where the file system cannot swap names
//
// Only these three are ever removed, and only in a folder of this user with the marker: whatever
// else has the name OUT.partial is somebody's, and stays. The marker is there before the name is:
// the folder is made as .OUT.moe-staging, marked and then renamed, and it goes the same way.

#include <filesystem>
#include <optional>
#include <utility>

#include "core/io/file.h"

namespace moe::io {

// renameat2 with RENAME_NOREPLACE or RENAME_EXCHANGE: false when the file system or the kernel does
// not know the flag. std::filesystem::filesystem_error when the renaming fails.
bool rename_with(const std::filesystem::path& from, const std::filesystem::path& to, unsigned flag);

// OUT without a trailing slash, so that a suffix makes a sibling; "." and ".." by their real names.
std::filesystem::path normalized(const std::filesystem::path& out);

// A marked folder, locked while this object lives. `out` is normalized.
class StagingArea {
 public:
  // One that was found or made before, with the lock that release() gave.
  StagingArea(std::filesystem::path out, Descriptor lock);
  // The one that a killed run left; none when there is none. Changes nothing. UserError: what has
  // the name is not ours or holds something else besides, another process works there now.
  static std::optional<StagingArea> find(const std::filesystem::path& out);
  // A new one, or the one that was left, emptied. UserError as above.
  static StagingArea create(const std::filesystem::path& out);
  static StagingArea emptied(std::optional<StagingArea> left, const std::filesystem::path& out);

  std::filesystem::path fresh() const { return folder_ / "new"; }
  std::filesystem::path replaced() const { return folder_ / "old"; }
  const std::filesystem::path& folder() const { return folder_; }

  void clear() const;  // removes new/ and old/
  void remove();       // those, the marker and the folder
  Descriptor release() { return std::move(lock_); }
  void disown() const;  // removes the marker alone: what lies here is the user's from now on

 private:
  std::filesystem::path out_, folder_;
  Descriptor lock_;
};

// Where a run that was killed while it replaced `out` left the old folder, if one did.
std::optional<std::filesystem::path> find_replaced(const std::filesystem::path& out);

// UserError where a StagedFolder for `out` would refuse what has the name OUT.partial. Takes no
// lock, so that several processes may ask at once.
void check_stageable(const std::filesystem::path& out);

// Removes OUT.partial where it holds the marker alone: the run that wrote OUT was killed after its
// last rename. Anything else of that name stays, without a word.
void remove_empty_area(const std::filesystem::path& out);

// Removes `folder`, so that a kill leaves it whole or gone, and what an unfinished write of it
// left; nothing happens when there is neither.
void remove_whole(const std::filesystem::path& folder);

}  // namespace moe::io
