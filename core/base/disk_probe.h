#pragma once
// How fast a disk takes bytes, measured by writing some: for the time that --dry-run promises.

#include <cstdint>
#include <filesystem>

#include "core/base/descriptor.h"

namespace moe {

// An unnamed file in `folder` (or its nearest existing parent) that grows and leaves nothing
// behind. UserError when it cannot be made or written.
class DiskProbe {
 public:
  explicit DiskProbe(const std::filesystem::path& folder);
  // The seconds that writing and syncing `bytes` more took.
  double append(uint64_t bytes);

 private:
  std::filesystem::path folder_;
  Descriptor file_;
};

// Bytes per second of a DiskProbe that writes `bytes` once.
double probe_disk(const std::filesystem::path& folder, uint64_t bytes = uint64_t{64} << 20);

}  // namespace moe
