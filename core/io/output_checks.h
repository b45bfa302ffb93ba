#pragma once
// Checks before an output file or folder is replaced or removed, and FOLDER/.moe-output, the list
// of the files that moe wrote into an output folder.
//
// `--force` replaces a folder if all entries are listed; in a folder that may have other files (moe
// eval -o) it replaces only the listed ones. Line 1 of the list is `moe output 1`; each further
// line is `BYTES NAME`, or `- NAME` for a folder and for a file of unknown size.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe::io {

// Returns true if `inner` is `outer` or below it, after links are resolved. Neither needs to exist.
bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer);

// Throws UserError if `folder` exists and contains the working folder or the user's home folder.
// `--force` does not override this.
void check_removable(const std::filesystem::path& folder);

// Throws UserError if a file system is mounted on `folder` or below it, because such a folder can
// be neither renamed nor removed.
void check_not_mounted(const std::filesystem::path& folder);

// Throws UserError if `folder` (or file) exists and is or contains one of `inputs`, the files that
// the command reads.
void check_inputs_outside(const std::filesystem::path& folder,
                          const std::vector<std::filesystem::path>& inputs);

inline constexpr const char* kOutputList = ".moe-output";

// Writes the list of all entries below `folder`, which moe has just written.
void write_output_list(const std::filesystem::path& folder);

// Adds `names`, files that are about to be written into `folder`, to its list.
void add_to_output_list(const std::filesystem::path& folder, const std::vector<std::string>& names);

// Returns the name of an entry below `folder` that its list lacks. Returns nothing if there is no
// such entry, or no list (older versions wrote none).
std::optional<std::string> find_unlisted(const std::filesystem::path& folder);

// Throws UserError if moe may not replace `folder`: it has entries and no list, or an entry that is
// not listed or whose size differs from the list. The message names that entry.
void check_written_by_moe(const std::filesystem::path& folder);

// Throws UserError if `file` exists and is not a page that moe wrote (core/base/page/page.html).
void check_is_own_page(const std::filesystem::path& file);

// Throws UserError, which names `flag`, if one of `files` is a link, is one of `inputs` or exists
// while `force` is false, or if its folder is a file or read-only. Call before the work starts.
void check_output(const std::vector<std::filesystem::path>& files, bool force,
                  const std::string& flag = "-o",
                  const std::vector<std::filesystem::path>& inputs = {});

// Throws UserError if one of `files` exists and is not a regular file in the list of its folder.
// For files whose names the user did not choose.
void check_own_output(const std::vector<std::filesystem::path>& files);

}  // namespace moe::io
