#pragma once
// Files for a user: refused before the work where they cannot be written, and written whole.

#include <filesystem>
#include <string>
#include <vector>

namespace moe::eval {

// UserError when one of `files` is there and not `force`, or when their folder is a file or
// may not be written. `flag` is what messages name.
void check_output(const std::vector<std::filesystem::path>& files, bool force,
                  const std::string& flag = "-o");
// `file` appears whole or not at all; its folder is there.
void write_whole(const std::filesystem::path& file, const std::string& text);

}  // namespace moe::eval
