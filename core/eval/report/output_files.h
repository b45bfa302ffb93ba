#pragma once
// Files for a user: refused before the work where they cannot or may not be written.

#include <filesystem>
#include <string>
#include <vector>

namespace moe::eval {

// UserError when one of `files` is there and not `force`, is a link or one of `inputs`, or when
// their folder is a file or may not be written. `flag` is what messages name.
void check_output(const std::vector<std::filesystem::path>& files, bool force,
                  const std::string& flag = "-o",
                  const std::vector<std::filesystem::path>& inputs = {});

}  // namespace moe::eval
