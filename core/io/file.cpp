#include "core/io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".partial-";
constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
constexpr size_t kRandomLetters = 6;

std::string random_letters() {
  std::random_device random;
  std::string letters;
  while (letters.size() < kRandomLetters) {
    letters += kLetters[random() % kLetters.size()];
  }
  return letters;
}

// Makes a new file `front`XXXXXX and sets `path` to its name.
Descriptor make_unique_file(const std::string& front, mode_t mode, fs::path& path) {
  for (;;) {
    path = front + random_letters();
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file.is_open()) {
      return file;
    }
    if (errno == ENOSPC || errno == EDQUOT) {
      throw_write_error(errno, path);
    }
    if (errno != EEXIST && errno != EINTR) {
      throw UserError("{}: no file can be written there: {}", parent_folder(front).string(),
                      std::strerror(errno));
    }
  }
}

// Blocks while a sweep holds the lock: only afterwards is it known whether the sweep removed the
// file. On file systems without locks nothing is swept.
void lock_partial(const Descriptor& file) {
  while (::flock(file.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
}

// Returns false if a sweep removed the file after it was made and before it was locked.
bool is_linked(const Descriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

// Returns true for TARGET.partial-XXXXXX.
bool is_partial_name(std::string_view name,
                     const std::function<bool(std::string_view)>& is_target) {
  if (name.size() <= kMark.size() + kRandomLetters) {
    return false;
  }
  const size_t target = name.size() - kRandomLetters - kMark.size();
  return name.substr(target, kMark.size()) == kMark &&
         name.find_first_not_of(kLetters, target + kMark.size()) == std::string_view::npos &&
         is_target(name.substr(0, target));
}

bool is_own_and_begins_with(const Descriptor& file, std::string_view first_bytes) {
  struct stat status {};
  std::string begin(first_bytes.size(), '\0');
  return ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1 &&
         status.st_uid == ::geteuid() &&
         ::pread(file.get(), begin.data(), begin.size(), 0) == static_cast<ssize_t>(begin.size()) &&
         begin == first_bytes;
}

}  // namespace

Descriptor create_file(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    if (errno == ENOSPC || errno == EDQUOT) {
      throw_write_error(errno, path);
    }
    throw UserError("{}: cannot be written: {}", path.string(), std::strerror(errno));
  }
  return file;
}

void throw_write_error(int error, const fs::path& path) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    throw UserError("disk full: {} cannot grow ({}); free some space or write to another disk",
                    path.string(), std::strerror(error));
  }
  throw std::system_error(error, std::generic_category(), path.string());
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes, const fs::path& path) {
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

void sync(const Descriptor& file, const fs::path& path) {
  while (::fsync(file.get()) != 0) {
    if (errno != EINTR) {
      throw_write_error(errno, path);
    }
  }
}

void sync_folder(const fs::path& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) {
    throw std::system_error(errno, std::generic_category(), folder.string());
  }
  // Some network file systems do not sync folders: EINVAL there means that nothing is to do.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) {
    throw_write_error(errno, folder);
  }
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  const Descriptor file = create_file(path);
  write_all(file, bytes, path);
  sync(file, path);
}

void write_file(const fs::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text)));
}

fs::path parent_folder(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

bool is_taken(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

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

PartialFile::PartialFile(fs::path target, mode_t mode) : target_(std::move(target)) {
  do {
    file_ = make_unique_file(target_.string() + std::string(kMark), mode, path_);
    lock_partial(file_);
  } while (!is_linked(file_));
}

PartialFile::~PartialFile() {
  if (file_.is_open()) {
    ::unlink(path_.c_str());
  }
}

void PartialFile::commit() {
  sync(file_, path_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    if (errno == ENOSPC || errno == EDQUOT) {
      throw_write_error(errno, target_);
    }
    throw UserError("{}: cannot be replaced: {}", target_.string(), std::strerror(errno));
  }
  sync_folder(parent_folder(target_));
  file_ = Descriptor();
}

void write_whole(const fs::path& file, const std::string& text) {
  PartialFile partial(file);
  write_all(partial.file(), std::as_bytes(std::span(text)), partial.path());
  partial.commit();
}

Descriptor make_nameless_file(const fs::path& folder) {
  fs::path path;
  Descriptor file = make_unique_file((folder / "moe-").string(), 0600, path);
  ::unlink(path.c_str());
  return file;
}

void sweep_partial_files(const fs::path& folder,
                         const std::function<bool(std::string_view)>& is_target,
                         std::string_view first_bytes) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_partial_name(entry.path().filename().string(), is_target)) {
      continue;
    }
    // O_NONBLOCK: opening a named pipe must not wait for its other end.
    const Descriptor file(
        ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.is_open() && is_own_and_begins_with(file, first_bytes) &&
        ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
  }
}

}  // namespace moe::io
