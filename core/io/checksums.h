#pragma once
// Checksums of a folder's files, so that one that was damaged on disk is told from a whole one
// before it is used. XXH3 at 64 bits: it finds accidents at the speed of memory; it is no
// signature.

#include <filesystem>
#include <optional>
#include <string>

namespace moe::io {

// Writes FOLDER/checksums.json over every other regular file in it whose name does not begin with a
// dot: {"xxh3": {"model.safetensors": "0123456789abcdef", ...}, "list": sum of "xxh3" itself}.
void write_checksums(const std::filesystem::path& folder);

// What is wrong with the folder, in words: a file that is missing, shorter, of another content than
// when the checksums were written or put there later; a list that was changed. Nothing when all is
// well. A list of an older version, which has no sum of its own, is believed.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

}  // namespace moe::io
