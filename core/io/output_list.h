#pragma once
// FOLDER/.moe-output: the files that moe wrote into an output folder. `--force` replaces a folder
// whose every entry is listed, and in a folder that moe shares with other files (moe eval -o) the
// listed files only. The first line is `moe output 1`; each further line is `BYTES NAME`, or `-
// NAME` for a folder and for a file of unknown size.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe::io {

inline constexpr const char* kOutputList = ".moe-output";

// Lists everything below `folder`, which moe has just written.
void write_output_list(const std::filesystem::path& folder);

// Adds `names`, files that are about to be written into `folder`, to its list.
void add_to_output_list(const std::filesystem::path& folder, const std::vector<std::string>& names);

// Returns true if the list of `folder` has `name`, and that is a regular file or missing.
bool is_listed_output(const std::filesystem::path& folder, const std::string& name);

// Returns the name of an entry below `folder` that its list lacks; nothing if there is none, or no
// list (older versions wrote none).
std::optional<std::string> find_unlisted(const std::filesystem::path& folder);

// Throws UserError if moe may not replace `folder`: it holds something and has no list, or holds an
// entry that is not listed or has another size than the listed one. The message names that entry.
void check_written_by_moe(const std::filesystem::path& folder);

// Throws UserError if `file` exists and is not a page that moe wrote (core/base/page/page.html).
void check_is_own_page(const std::filesystem::path& file);

}  // namespace moe::io
