#include "core/io/staging_area.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/utf8.h"
#include "core/io/paths.h"
#include "core/io/staged_folder.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".moe-staging";

fs::path area_of(const fs::path& out) { return fs::path(out) += ".partial"; }

// The name of an area while it has no marker yet, or no marker any more.
fs::path unmarked_area_of(const fs::path& out) {
  return out.parent_path() / ("." + out.filename().string() + ".moe-staging");
}

// The lines by which an area of `out` is known; a copy of it under another name is not one.
std::string marker_head(const fs::path& out) {
  return "moe staging 1\n" + out.filename().string() + "\n";
}

std::string marker_text(const fs::path& out) {
  return marker_head(out) +
         "An unfinished write of the folder that the line above names, or what is left of one. The "
         "next moe that\nwrites there removes new/, old/ and this file.\n";
}

// Whether the folder that is open as `folder` is a folder of this user.
bool is_own_folder(const Descriptor& folder) {
  struct stat status {};
  return ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid();
}

bool has_marker(const fs::path& folder, const fs::path& out) {
  const fs::path marker = folder / kMarker;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(marker, error))) {
    return false;
  }
  const std::string head = marker_head(out);
  return read_file_start(marker, head.size()) == head;
}

// A name in `folder` that is none of `known`.
std::optional<std::string> foreign_name(const fs::path& folder,
                                        std::initializer_list<std::string_view> known) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return name;
    }
  }
  return std::nullopt;
}

// The folder, not what a link of its name points to.
Descriptor open_folder(const fs::path& folder) {
  return Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void lock(const Descriptor& folder, const fs::path& out) {
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UserError("{}: another run is writing it now; wait for it or give another output folder",
                    out.string());
  }
}

// Whether `folder` still has the name `path`: it may have been renamed or removed before its lock.
bool has_name(const Descriptor& folder, const fs::path& path) {
  struct stat held {
  }, named{};
  return ::fstat(folder.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

[[noreturn]] void throw_in_the_way(const fs::path& folder, const fs::path& out) {
  throw UserError(
      "{}: is in the way of writing {}, and not known to be moe's (it has no marker of this "
      "version): move it or remove it, or give another output folder",
      folder.string(), out.string());
}

// A marked folder holds what is ours and nothing else.
void check_content(const fs::path& folder, const fs::path& out) {
  if (const auto name = foreign_name(folder, {kMarker, "new", "old"})) {
    throw UserError(
        "{}: holds '{}' beside an unfinished write of {}; move that, or give another output "
        "folder",
        folder.string(), printable(*name), out.string());
  }
}

// The folder without a name of ours yet, made now or left by a process that died right after; it
// holds nothing but, at most, the marker.
Descriptor make_unmarked(const fs::path& folder, const fs::path& out) {
  for (;;) {
    if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
      throw fs::filesystem_error("mkdir", folder, std::error_code(errno, std::generic_category()));
    }
    Descriptor handle = open_folder(folder);
    if (!handle.is_open() && errno == ENOENT) {
      continue;
    }
    if (!handle.is_open() || !is_own_folder(handle)) {
      throw_in_the_way(folder, out);
    }
    lock(handle, out);
    if (!has_name(handle, folder)) {
      continue;
    }
    if (foreign_name(folder, {kMarker})) {
      throw_in_the_way(folder, out);
    }
    return handle;
  }
}

}  // namespace

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

Descriptor lock_folder(const fs::path& folder, const fs::path& out) {
  Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.is_open()) {
    lock(handle, out);
  }
  return handle;
}

bool rename_with(const fs::path& from, const fs::path& to, unsigned flag) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flag) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    return false;
  }
  throw fs::filesystem_error("rename", from, to, std::error_code(errno, std::generic_category()));
}

StagingArea::StagingArea(fs::path out, Descriptor lock)
    : out_(std::move(out)), folder_(area_of(out_)), lock_(std::move(lock)) {}

std::optional<StagingArea> StagingArea::find(const fs::path& out) {
  const fs::path folder = area_of(out);
  for (;;) {
    Descriptor handle = open_folder(folder);
    const int error = handle.is_open() ? 0 : errno;
    if (!is_taken(folder)) {
      return std::nullopt;
    }
    if (error == ENOENT) {
      continue;  // it came meanwhile
    }
    if (error != 0 && error != ENOTDIR && error != ELOOP) {
      throw fs::filesystem_error("open", folder, std::error_code(error, std::generic_category()));
    }
    if (error != 0 || !is_own_folder(handle) || !has_marker(folder, out)) {
      if (is_taken(folder)) {
        throw_in_the_way(folder, out);
      }
      continue;  // it went meanwhile
    }
    lock(handle, out);
    if (!has_name(handle, folder)) {
      continue;
    }
    check_content(folder, out);
    return StagingArea(out, std::move(handle));
  }
}

StagingArea StagingArea::create(const fs::path& out) {
  const fs::path unmarked = unmarked_area_of(out), folder = area_of(out);
  Descriptor handle = make_unmarked(unmarked, out);
  try {
    write_file(unmarked / kMarker, marker_text(out));
    sync_folder(unmarked);  // a power loss may keep the name below and lose what was not synced
    if (!rename_with(unmarked, folder, RENAME_NOREPLACE)) {
      fs::rename(unmarked, folder);  // fails where a folder with anything in it is
    }
  } catch (const std::exception&) {
    std::error_code ignored;
    fs::remove(unmarked / kMarker, ignored);
    fs::remove(unmarked, ignored);
    if (is_taken(folder)) {
      throw UserError(
          "{}: another run is writing it now; wait for it or give another output folder",
          out.string());
    }
    throw;
  }
  return StagingArea(out, std::move(handle));
}

StagingArea StagingArea::emptied(std::optional<StagingArea> left, const fs::path& out) {
  if (!left) {
    fs::create_directories(parent_folder(out));
    return create(out);
  }
  left->clear();
  return std::move(*left);
}

void StagingArea::clear() const {
  fs::remove_all(fresh());
  fs::remove_all(replaced());
}

void StagingArea::remove() {
  clear();
  // Never without both marker and name of ours: a kill here leaves what the next run takes over.
  fs::path folder = folder_;
  const fs::path unmarked = unmarked_area_of(out_);
  std::error_code error;
  if (!is_taken(unmarked)) {
    fs::rename(folder, unmarked, error);
    folder = error ? folder : unmarked;
  }
  fs::remove(folder / kMarker);
  fs::remove(folder);
  lock_ = Descriptor();
}

void StagingArea::disown() const { fs::remove(folder_ / kMarker); }

std::optional<fs::path> find_replaced(const fs::path& out) {
  const fs::path old = StagingArea(normalized(out), Descriptor()).replaced();
  std::error_code error;
  return fs::is_directory(old, error) ? std::optional(old) : std::nullopt;
}

void check_stageable(const fs::path& out) {
  const fs::path whole = normalized(out), folder = area_of(whole);
  const Descriptor handle = open_folder(folder);
  if (!is_taken(folder)) {
    return;
  }
  if (!handle.is_open() || !is_own_folder(handle) || !has_marker(folder, whole)) {
    throw_in_the_way(folder, whole);
  }
  check_content(folder, whole);
}

void remove_empty_area(const fs::path& out) {
  try {
    auto left = StagingArea::find(normalized(out));
    if (left && !is_taken(left->fresh()) && !is_taken(left->replaced())) {
      left->remove();
    }
  } catch (const UserError&) {  // somebody's, or another process is at work there
  } catch (const fs::filesystem_error&) {
  }
}

void remove_whole(const fs::path& folder) {
  const fs::path whole = normalized(folder);
  auto left = StagingArea::find(whole);
  if (!left && !is_taken(whole)) {
    return;
  }
  StagingArea area = StagingArea::emptied(std::move(left), whole);
  if (is_taken(whole)) {
    fs::rename(whole, area.fresh());
    sync_folder(parent_folder(whole));
  }
  area.remove();
}

}  // namespace moe::io
