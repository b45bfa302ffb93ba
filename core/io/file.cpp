#include "core/io/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::io {

Descriptor open_to_read(const std::filesystem::path& path) { return moe::open_to_read(path); }

Descriptor create_file(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    if (errno == ENOSPC || errno == EDQUOT) {
      throw_write_error(errno, path);
    }
    throw UserError("{}: cannot be written: {}", path.string(), std::strerror(errno));
  }
  return file;
}

void throw_write_error(int error, const std::filesystem::path& path) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    throw UserError("disk full: {} cannot grow ({}); free some space or write to another disk",
                    path.string(), std::strerror(error));
  }
  throw std::system_error(error, std::generic_category(), path.string());
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes,
               const std::filesystem::path& path) {
  constexpr size_t kLargestPiece = size_t{64} << 20;  // one write() takes at most 2 GiB anyway
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(file.get(), bytes.data(), std::min(bytes.size(), kLargestPiece));
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      throw_write_error(written == 0 ? ENOSPC : errno, path);
    }
  }
}

void sync(const Descriptor& file, const std::filesystem::path& path) {
  while (::fsync(file.get()) != 0) {
    if (errno != EINTR) {
      throw_write_error(errno, path);
    }
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) {
    throw std::system_error(errno, std::generic_category(), folder.string());
  }
  // Some network file systems refuse to sync a folder: EINVAL there means that there is nothing to
  // do.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) {
    throw_write_error(errno, folder);
  }
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const Descriptor file = create_file(path);
  write_all(file, bytes, path);
  sync(file, path);
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text)));
}

std::string size_text(uint64_t bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) {
    return fmt::format("{} bytes", bytes);
  }
  double value = static_cast<double>(bytes) / 1000.0;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace moe::io
