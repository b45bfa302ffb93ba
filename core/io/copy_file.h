#pragma once

#include <filesystem>

namespace moe::io {

// Makes `to` with the bytes and the mode of `from` (less the umask): what only its owner may read
// stays so. UserError: `from` cannot be read, the disk is full.
void copy_with_mode(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace moe::io
