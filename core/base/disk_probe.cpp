#include "core/base/disk_probe.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

fs::path nearest_existing(const fs::path& folder) {
  fs::path existing = fs::absolute(folder);
  std::error_code error;
  while (!fs::is_directory(existing, error) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  return existing;
}

// Returns false, with errno set, when the disk refuses.
bool write_and_sync(int file, uint64_t bytes) {
  std::vector<uint64_t> block(size_t{4}
                              << 17);  // 4 MiB of noise, so that no file system compresses it away
  Random random(0);
  std::generate(block.begin(), block.end(), [&] { return random.bits(); });
  for (uint64_t written = 0; written < bytes;) {
    const auto part = std::min<uint64_t>(bytes - written, block.size() * sizeof(uint64_t));
    const ssize_t moved = ::write(file, block.data(), part);
    if (moved < 0 && errno != EINTR) {
      return false;
    }
    written += static_cast<uint64_t>(std::max<ssize_t>(moved, 0));
  }
  return ::fsync(file) == 0;
}

}  // namespace

DiskProbe::DiskProbe(const fs::path& folder) : folder_(nearest_existing(folder)) {
  std::string name = (folder_ / ".moe-probe-XXXXXX").string();
  file_ = Descriptor(::mkstemp(name.data()));
  if (!file_.is_open()) {
    throw UserError("{}: no file can be written there: {}", folder_.string(), std::strerror(errno));
  }
  ::unlink(name.c_str());
}

double DiskProbe::append(uint64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  if (!write_and_sync(file_.get(), bytes)) {
    throw UserError("{}: writing {} bytes to try the disk failed: {}", folder_.string(), bytes,
                    std::strerror(errno));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double probe_disk(const fs::path& folder, uint64_t bytes) {
  return static_cast<double>(bytes) / std::max(DiskProbe(folder).append(bytes), 1e-9);
}

}  // namespace moe
