#pragma once
// The system calls under every file we write, with their interruptions, short writes and full disks
// handled in one place.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/base/descriptor.h"

namespace moe::io {

// UserError: missing, not a regular file (folders, pipes, devices), not readable.
Descriptor open_to_read(const std::filesystem::path& path);

// Makes an empty file for writing. UserError when it cannot be made.
Descriptor create_file(const std::filesystem::path& path);

// The failed call's meaning: UserError "disk full" for ENOSPC, EDQUOT and EFBIG, std::system_error
// for the rest.
[[noreturn]] void throw_write_error(int error, const std::filesystem::path& path);

void write_all(const Descriptor& file, std::span<const std::byte> bytes,
               const std::filesystem::path& path);
void sync(const Descriptor& file, const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& folder);

// Writes and syncs a whole small file.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, const std::string& text);

// "13.5 GB", "812 bytes": for people. Decimal units, as disks are sold.
std::string size_text(uint64_t bytes);

}  // namespace moe::io
