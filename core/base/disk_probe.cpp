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

double probe_disk(const fs::path& folder, uint64_t bytes) {
  const fs::path existing = nearest_existing(folder);
  std::string name = (existing / ".moe-probe-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file < 0) {
    throw UserError("{}: no file can be written there: {}", existing.string(),
                    std::strerror(errno));
  }
  ::unlink(name.c_str());
  const auto start = std::chrono::steady_clock::now();
  const bool written = write_and_sync(file, bytes);
  const int error = errno;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ::close(file);
  if (!written) {
    throw UserError("{}: writing {} bytes to try the disk failed: {}", existing.string(), bytes,
                    std::strerror(error));
  }
  return static_cast<double>(bytes) / std::max(seconds, 1e-9);
}

}  // namespace moe
