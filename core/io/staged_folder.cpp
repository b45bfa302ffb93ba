#include "core/io/staged_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "core/base/error.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// OUT without a trailing slash, so that a suffix makes a sibling; "." and ".." by their real names.
fs::path normalized(const fs::path& out) {
  fs::path path = out.lexically_normal();
  if (!path.has_filename()) {
    path = path.parent_path();
  }
  if (path.empty() || path.filename() == "." || path.filename() == "..") {
    path = fs::absolute(path).lexically_normal();
    path = path.has_filename() ? path : path.parent_path();
  }
  return path;
}

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

bool holds(const fs::path& folder, const fs::path& inner) {
  std::error_code error;
  const fs::path outer = fs::weakly_canonical(folder, error);
  const fs::path place = fs::weakly_canonical(inner, error);
  return !error &&
         std::mismatch(outer.begin(), outer.end(), place.begin(), place.end()).first == outer.end();
}

void check_replaceable(const fs::path& out, bool force) {
  const auto status = fs::symlink_status(out);
  if (!fs::exists(status)) {
    return;
  }
  if (!fs::is_directory(fs::status(out))) {
    throw UserError("{}: is a file; give the name of a folder to write", out.string());
  }
  if (!force) {
    throw UserError("{}: exists already; give another output folder, or --force to replace it",
                    out.string());
  }
  const char* home = std::getenv("HOME");
  if (holds(out, fs::current_path()) || (home != nullptr && holds(out, home))) {
    throw UserError(
        "{}: holds the working or the home folder and will not be replaced; give another output "
        "folder",
        out.string());
  }
}

// A kill between the two renames of replace() left the old folder under another name: see the table
// in the header.
void heal(const fs::path& out, const fs::path& replaced) {
  if (!fs::exists(fs::symlink_status(replaced))) {
    return;
  }
  if (fs::exists(fs::symlink_status(out))) {
    fs::remove_all(replaced);
  } else {
    fs::rename(replaced, out);
  }
}

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) {
      sync_folder(entry.path());
    } else if (entry.is_regular_file() && !entry.is_symlink()) {
      sync(open_to_read(entry.path()), entry.path());
    }
  }
  sync_folder(folder);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// renameat2: false when the file system or the kernel does not know the flag.
bool rename_with(const fs::path& from, const fs::path& to, unsigned flag) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flag) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    return false;
  }
  throw fs::filesystem_error("rename", from, to, std::error_code(errno, std::generic_category()));
}

}  // namespace

Descriptor lock_folder(const fs::path& folder, const fs::path& out) {
  Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.is_open() && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UserError("{}: another run is writing it now; wait for it or give another output folder",
                    out.string());
  }
  return handle;
}

StagedFolder::StagedFolder(fs::path out, bool force)
    : out_(normalized(out)),
      partial_(with_suffix(out_, ".partial")),
      replaced_(with_suffix(out_, ".replaced")),
      force_(force) {
  try {
    const Descriptor stale = lock_folder(partial_, out_);
    heal(out_, replaced_);
    check_replaceable(out_, force_);
    fs::remove_all(partial_);
    fs::create_directories(partial_);
    owns_partial_ = true;
    lock_ = lock_folder(partial_, out_);
  } catch (const fs::filesystem_error& error) {
    throw UserError("{}: cannot be written: {}", out_.string(), error.code().message());
  }
}

StagedFolder::~StagedFolder() {
  if (owns_partial_) {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }
}

void StagedFolder::write_text(const std::string& name, const std::string& text) const {
  const fs::path file = partial_ / name;
  fs::create_directories(file.parent_path());
  write_file(file, text);
}

void StagedFolder::commit() {
  MOE_CHECK(owns_partial_, "{} was committed before", out_.string());
  sync_tree(partial_);
  if (force_ && fs::exists(fs::symlink_status(out_))) {
    replace();
  } else if (!fs::exists(fs::symlink_status(out_))) {
    if (!rename_with(partial_, out_, RENAME_NOREPLACE)) {
      fs::rename(partial_, out_);
    }
    owns_partial_ = false;
  } else {
    owns_partial_ = false;  // hours of work: kept where the message says
    throw UserError(
        "{}: was made by another while this run wrote; what this run made is in {}: rename it",
        out_.string(), partial_.string());
  }
  sync_folder(parent_of(out_));
}

// The old and the new change names in one step where the file system can; the old one goes last of
// all.
void StagedFolder::replace() {
  fs::path old = partial_;
  if (!rename_with(partial_, out_, RENAME_EXCHANGE)) {
    fs::rename(out_, replaced_);
    fs::rename(partial_, out_);
    old = replaced_;
  }
  owns_partial_ = false;
  sync_folder(parent_of(out_));
  fs::remove_all(old);
}

}  // namespace moe::io
