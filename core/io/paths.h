#pragma once
// What is asked of paths before folders are made, replaced or removed.

#include <filesystem>
#include <vector>

namespace moe::io {

// The folder that `path` lies in; "." where the path names none.
std::filesystem::path parent_folder(const std::filesystem::path& path);

// Whether something is there under this name, be it a link to nothing.
bool is_taken(const std::filesystem::path& path);

// Whether `inner` is `outer` or lies in it, links resolved. Neither needs to exist.
bool lies_in(const std::filesystem::path& inner, const std::filesystem::path& outer);

// What no flag lets us remove or replace. UserError when `folder` is there and holds the working
// folder or the home folder of the user.
void check_removable(const std::filesystem::path& folder);

// UserError when a file system is mounted on `folder` or on a folder in it: then it cannot be
// renamed or removed without what is mounted.
void check_not_mounted(const std::filesystem::path& folder);

// The same as check_removable() for what a command reads to make its output. UserError when
// `folder` (or file) is there and is or holds one of `inputs`.
void check_inputs_outside(const std::filesystem::path& folder,
                          const std::vector<std::filesystem::path>& inputs);

}  // namespace moe::io
