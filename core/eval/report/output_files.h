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

// Throws UserError if one of `files` exists and is not in its folder's list of what moe wrote there
// (core/io/output_checks.h): for names that the user did not spell.
void check_own_output(const std::vector<std::filesystem::path>& files);

}  // namespace moe::eval
