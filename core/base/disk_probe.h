#pragma once
// How fast a disk takes bytes, measured by writing some: for the time that --dry-run promises.

#include <cstdint>
#include <filesystem>

namespace moe {

// Writes and syncs `bytes` into an unnamed file in `folder` (or its nearest existing parent), which
// leaves nothing behind, and returns bytes per second. UserError when no file can be made or
// written there.
double probe_disk(const std::filesystem::path& folder, uint64_t bytes = uint64_t{64} << 20);

}  // namespace moe
