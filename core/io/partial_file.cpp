#include "core/io/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/error.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".partial-";

// A new file `front`XXXXXX; its name is put into `path`.
Descriptor make_unique_file(const std::string& front, fs::path& path) {
  std::string name = front + "XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOSPC || errno == EDQUOT) {
      throw_write_error(errno, name);
    }
    throw UserError("{}: no file can be written there: {}", fs::path(front).parent_path().string(),
                    std::strerror(errno));
  }
  path = name;
  return file;
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

}  // namespace

PartialFile::PartialFile(fs::path target) : target_(std::move(target)) {
  do {
    file_ = make_unique_file(target_.string() + std::string(kMark), path_);
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
  sync_folder(target_.parent_path());
  file_ = Descriptor();
}

Descriptor make_nameless_file(const fs::path& folder) {
  fs::path path;
  Descriptor file = make_unique_file((folder / "moe-").string(), path);
  ::unlink(path.c_str());
  return file;
}

void sweep_partial_files(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().find(kMark) == std::string::npos ||
        !entry.is_regular_file(ignored)) {
      continue;
    }
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.is_open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
  }
}

}  // namespace moe::io
