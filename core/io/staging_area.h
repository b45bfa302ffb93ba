#pragma once
// OUT.partial, the folder beside OUT in which OUT is made and from which it is renamed:
//
//   .moe-staging  the marker: says in words that the folder is ours, and for which OUT
//   new/          what is being written; after a swap of two names, the folder that was replaced
//   old/          the folder that is being replaced, where the file system cannot swap names
//
// Only these three are ever removed, and only in a folder of this user with the marker: anything
// else named OUT.partial stays. The marker is there before the name is: the folder is made as
// .OUT.moe-staging, marked and then renamed, and it is removed the same way.
//
// Everything is made, renamed and removed relative to the open folder that OUT is in and to the
// open OUT.partial, so that no link that appears meanwhile is followed.

#include <filesystem>
#include <optional>
#include <utility>

#include "core/io/file.h"

namespace moe::io {

// OUT without a trailing slash, so that a suffix makes a sibling; "." and ".." by their real names.
std::filesystem::path normalized(const std::filesystem::path& out);

// A marked folder, locked while this object lives. `out` is normalized. Where `root` is given,
// `out` is below it, and UserError is thrown if a folder between the two is a symbolic link.
class StagingArea {
 public:
  enum class Slot { kOut, kNew, kOld };

  // An area that was found or made before, with the open folder that release() gave.
  StagingArea(std::filesystem::path out, Descriptor handle);
  // Returns the area that a killed run left; nothing if there is none. Changes nothing. Throws
  // UserError if OUT.partial is not ours or holds other names, or if another process works there.
  static std::optional<StagingArea> find(const std::filesystem::path& out,
                                         const std::filesystem::path& root = {});
  // Returns `left`, emptied, or a new area. Throws UserError as find() does.
  static StagingArea emptied(std::optional<StagingArea> left, const std::filesystem::path& out,
                             const std::filesystem::path& root = {});

  std::filesystem::path fresh() const { return folder_ / "new"; }
  std::filesystem::path replaced() const { return folder_ / "old"; }
  const std::filesystem::path& folder() const { return folder_; }

  // Returns true if something has the name, be it a link to nothing.
  bool has(Slot slot) const;
  void make_fresh() const;
  // renameat2 with `flag`. Returns false if the file system or the kernel does not know the flag.
  // Throws std::filesystem::filesystem_error if the call fails.
  bool rename(Slot from, Slot to, unsigned flag = 0) const;
  Descriptor release() { return std::move(handle_); }
  void remove();        // new/, old/, the marker and the folder
  void disown() const;  // removes the marker alone: from now on the folder is the user's

 private:
  StagingArea(std::filesystem::path out, Descriptor parent, Descriptor handle);
  static StagingArea create(const std::filesystem::path& out, const std::filesystem::path& root);
  std::pair<int, std::string> location(Slot slot) const;  // open folder and name in it
  void clear() const;

  std::filesystem::path out_, folder_;
  Descriptor parent_;  // the folder that OUT is in
  Descriptor handle_;  // OUT.partial, locked
};

// Where a run that was killed while it replaced `out` left the old folder, if one did.
std::optional<std::filesystem::path> find_replaced(const std::filesystem::path& out);

// Throws UserError if a StagedFolder for `out` would refuse what is named OUT.partial. Takes no
// lock, so several processes may call it at once.
void check_stageable(const std::filesystem::path& out);

// Removes what a killed write or removal of `out` left in OUT.partial and .OUT.moe-staging. Leaves
// everything that is not ours, that another process works on, or that holds the only copy of OUT.
void remove_leftovers(const std::filesystem::path& out, const std::filesystem::path& root);

// Removes `folder`, so that a kill leaves it whole or gone, and what an unfinished write of it
// left; nothing happens if there is neither. `root` as for StagingArea.
void remove_whole(const std::filesystem::path& folder, const std::filesystem::path& root = {});

}  // namespace moe::io
