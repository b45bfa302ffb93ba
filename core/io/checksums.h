#pragma once
// Checksums of a folder's files, so that one that was damaged on disk is told from a whole one
// before it is used. XXH3 at 64 bits: it finds accidents at the speed of memory; it is no
// signature.

#include <filesystem>
#include <optional>
#include <string>

namespace moe::io {

// Writes FOLDER/checksums.json: {"xxh3": {"model.safetensors": "0123456789abcdef", ...}} over every
// other regular file in it.
void write_checksums(const std::filesystem::path& folder);

// What is wrong with the folder, in words: a file that is missing, shorter, or of another content
// than when the checksums were written. Nothing when all is well.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

}  // namespace moe::io
