#include "core/io/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <span>

#include "core/base/error.h"
#include "core/io/paths.h"

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

// A new file `front`XXXXXX; its name is put into `path`.
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

// Waits for a sweep that holds it: whether that took the file is known only when it lets go.
// Where there are no locks nothing is swept either.
void lock(const Descriptor& file) {
  while (::flock(file.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
}

// A sweep may have taken the file between its making and its lock.
bool has_name(const Descriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

// TARGET.partial-XXXXXX.
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

PartialFile::PartialFile(fs::path target, mode_t mode) : target_(std::move(target)) {
  do {
    file_ = make_unique_file(target_.string() + std::string(kMark), mode, path_);
    lock(file_);
  } while (!has_name(file_));
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
    // O_NONBLOCK: a named pipe must not wait for its other end.
    const Descriptor file(
        ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.is_open() && is_own_and_begins_with(file, first_bytes) &&
        ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
  }
}

}  // namespace moe::io
