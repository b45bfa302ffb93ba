#include "core/io/staged_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::io {

namespace fs = std::filesystem;

using Slot = StagingArea::Slot;

namespace {

constexpr const char* kMarker = ".moe-staging";

fs::path staging_area_path(const fs::path& out) { return fs::path(out) += ".partial"; }

// Returns the name of an area before it is marked and after its marker is removed.
fs::path unmarked_staging_area(const fs::path& out) {
  return out.parent_path() / ("." + out.filename().string() + ".moe-staging");
}

// Returns the lines that identify the area of `out` by name.
std::string marker_head(const fs::path& out) {
  return "moe staging 1\n" + out.filename().string() + "\n";
}

// Returns true if the open folder belongs to this user.
bool is_own_folder(const Descriptor& folder) {
  struct stat status {};
  return ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid();
}

// Throws the error for errno: std::runtime_error if too many files are open, which the callers do
// not turn into a UserError, else fs::filesystem_error.
[[noreturn]] void throw_errno(const char* call, const fs::path& path) {
  check_opened(-1, path.string());
  throw fs::filesystem_error(call, path, std::error_code(errno, std::generic_category()));
}

// Opens the folder `name` in `parent` without following a link. Not open if that fails.
Descriptor open_folder_at(int parent, const std::string& name) {
  return Descriptor(check_opened(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), name));
}

bool is_taken_at(int parent, const std::string& name) {
  struct stat status {};
  return ::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

// Opens the parent of `out`; not open if there is none. Follows no link below `root`.
Descriptor open_parent(const fs::path& out, const fs::path& root) {
  fs::path reached = root.empty() ? parent_folder(out) : root;
  fs::path below;
  if (!root.empty()) {
    below = parent_folder(out).lexically_relative(root.lexically_normal());
    MOE_CHECK(!below.empty() && *below.begin() != "..", "{} is not below {}", out.string(),
              root.string());
  }
  Descriptor folder(::open(reached.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (const auto& part : below) {
    if (!folder.is_open() || part == ".") {
      continue;
    }
    reached /= part;
    Descriptor next(check_opened(
        ::openat(folder.get(), part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
        reached.string()));
    const int error = errno;
    USER_ERROR_IF(!next.is_open() && is_taken_at(folder.get(), part.string()),
                  "{}: is a link or no folder, and nothing is removed or replaced through it; put "
                  "the folder itself there, or give another output folder",
                  reached.string());
    folder = std::move(next);
    errno = error;
  }
  if (!folder.is_open() && errno != ENOENT) {
    throw_errno("open", reached);
  }
  return folder;
}

// Returns a path of the open folder that stays valid if the folder is renamed.
fs::path open_path(const Descriptor& folder) {
  return fmt::format("/proc/self/fd/{}", folder.get());
}

// Removes `name` of `folder` recursively, if it exists, following no link. `path` is for errors.
void remove_tree_at(const Descriptor& folder, const std::string& name, const fs::path& path) {
  if (::unlinkat(folder.get(), name.c_str(), 0) == 0) {  // a file: needs no descriptor
    return;
  }
  std::error_code error;
  fs::remove_all(open_path(folder) / name, error);
  if (error) {
    errno = error.value();
    throw_errno("remove", path);
  }
}

bool has_marker(const Descriptor& folder, const fs::path& out) {
  const Descriptor marker(check_opened(
      ::openat(folder.get(), kMarker, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), kMarker));
  const std::string head = marker_head(out);
  return read_start(marker, head.size()) == head;
}

// Returns a name in `folder` that is not in `known`.
std::optional<std::string> foreign_name(const Descriptor& folder,
                                        std::initializer_list<std::string_view> known) {
  std::error_code error;
  fs::directory_iterator entry(open_path(folder), error);
  for (; entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return name;
    }
  }
  if (error) {
    errno = error.value();
    throw_errno("list", "the output folder");
  }
  return std::nullopt;
}

void lock(const Descriptor& folder, const fs::path& out) {
  USER_ERROR_IF(::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK,
                "{}: another run is writing it now; wait for it or give another output folder",
                out.string());
}

// Returns true if `name` in `parent` is still `folder`, not renamed or removed before the lock.
bool has_name(const Descriptor& folder, const Descriptor& parent, const std::string& name) {
  struct stat opened {
  }, named{};
  return ::fstat(folder.get(), &opened) == 0 &&
         ::fstatat(parent.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

[[noreturn]] void throw_foreign_folder(const fs::path& folder, const fs::path& out) {
  throw UserError(
      "{}: has the name that writing {} needs, and no marker of this version of moe; move it or "
      "remove it, or give another output folder",
      folder.string(), out.string());
}

// Throws UserError if a marked folder has an entry that is not part of a staging area.
void check_content(const Descriptor& folder, const fs::path& out) {
  if (const auto name = foreign_name(folder, {kMarker, "new", "old"})) {
    throw UserError(
        "{}: holds '{}', which is not part of an unfinished write of {}; move it, or give another "
        "output folder",
        staging_area_path(out).string(), printable(*name), out.string());
  }
}

// Creates and locks the area under its unmarked name, or takes over that of a killed process.
Descriptor make_unmarked(const Descriptor& parent, const fs::path& folder, const fs::path& out) {
  const std::string name = folder.filename().string();
  for (;;) {
    if (::mkdirat(parent.get(), name.c_str(), 0777) != 0 && errno != EEXIST) {
      throw_errno("mkdir", folder);
    }
    Descriptor handle = open_folder_at(parent.get(), name);
    if (!handle.is_open() && errno == ENOENT) {
      continue;
    }
    if (!handle.is_open() || !is_own_folder(handle)) {
      throw_foreign_folder(folder, out);
    }
    lock(handle, out);
    if (!has_name(handle, parent, name)) {
      continue;
    }
    if (foreign_name(handle, {kMarker})) {
      throw_foreign_folder(folder, out);
    }
    return handle;
  }
}

void write_marker(const Descriptor& folder, const fs::path& path, const fs::path& out) {
  const fs::path file = path / kMarker;
  const Descriptor marker(
      ::openat(folder.get(), kMarker, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!marker.is_open()) {
    throw_write_error(errno, file);
  }
  const std::string text =
      marker_head(out) +
      "An unfinished write of the folder that the line above names, or what is left of one. The "
      "next moe that\nwrites there removes new/, old/ and this file.\n";
  write_all(marker, std::as_bytes(std::span(text)), file);
  sync(marker, file);
  sync_folder(open_path(folder));
}

// Calls renameat2() between two open folders. Returns false, with errno set, if it fails.
bool rename_at(int from_folder, const std::string& from, int to_folder, const std::string& to,
               unsigned flag) {
  return ::renameat2(from_folder, from.c_str(), to_folder, to.c_str(), flag) == 0;
}

bool is_unknown_flag(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

void check_replaceable(const fs::path& out, bool force) {
  if (!is_taken(out)) {
    return;
  }
  USER_ERROR_IF(fs::is_symlink(out),
                "{}: is a link to {}; give that folder itself, or another output folder",
                out.string(), fs::read_symlink(out).string());
  USER_ERROR_IF(!fs::is_directory(fs::status(out)),
                "{}: is a file; give the name of a folder to write", out.string());
  USER_ERROR_IF(!force, "{}: exists already; give another output folder, or --force to replace it",
                out.string());
  check_not_mounted(out);
  check_removable(out);
  check_written_by_moe(out);
}

// Returns true if a kill between the two renames of put_in_place() left the former OUT in `area`.
// Throws UserError if it may not be restored, or is the only copy while another OUT exists.
bool has_only_old_copy(const StagingArea& area, const fs::path& out, bool force) {
  if (!area.has(Slot::kOld)) {
    return false;
  }
  if (!area.has(Slot::kOut)) {
    USER_ERROR_IF(!force,
                  "{0}: a run was killed while replacing it, the old one is {1}; rename that, or "
                  "give --force to replace it",
                  out.string(), area.old_folder().string());
    check_removable(area.old_folder());
    return true;
  }
  USER_ERROR_IF(area.has(Slot::kNew),  // so OUT is not the result of the killed run
                "{}: exists, and its former version, moved by a killed run, is still in {}; move "
                "that one, or give another output folder",
                out.string(), area.old_folder().string());
  return false;
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

// Swaps the names of the old and the new folder, in one step if the file system supports it.
void put_in_place(const StagingArea& area, const fs::path& out, bool force) {
  if (!area.has(Slot::kOut)) {
    if (!area.rename(Slot::kNew, Slot::kOut, RENAME_NOREPLACE)) {
      area.rename(Slot::kNew, Slot::kOut);
    }
    return;
  }
  USER_ERROR_IF(!force, "{}: was created by another process during this run", out.string());
  check_replaceable(out, force);  // OUT may have changed since the start
  if (area.rename(Slot::kNew, Slot::kOut, RENAME_EXCHANGE)) {
    return;
  }
  area.rename(Slot::kOut, Slot::kOld);
  try {
    area.rename(Slot::kNew, Slot::kOut);
  } catch (const fs::filesystem_error& error) {
    std::string where;
    try {
      area.rename(Slot::kOld, Slot::kOut);
    } catch (const fs::filesystem_error&) {
      where = "; its former version is " + area.old_folder().string();
    }
    throw UserError("{}: cannot be put in place: {}{}", out.string(), error.code().message(),
                    where);
  }
}

// A failure leaves a marked folder, which the next run removes.
void remove_quietly(StagingArea& area) {
  try {
    area.remove();
  } catch (const std::exception&) {
  }
}

}  // namespace

fs::path normalize_path(const fs::path& out) {
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

StagingArea::StagingArea(fs::path out, Descriptor parent, Descriptor handle)
    : out_(std::move(out)),
      folder_(staging_area_path(out_)),
      parent_(std::move(parent)),
      handle_(std::move(handle)) {}

std::optional<StagingArea> StagingArea::find(const fs::path& out, const fs::path& root) {
  const fs::path folder = staging_area_path(out);
  const std::string name = folder.filename().string();
  Descriptor parent = open_parent(out, root);
  while (parent.is_open()) {
    Descriptor handle = open_folder_at(parent.get(), name);
    const int error = handle.is_open() ? 0 : errno;
    if (!is_taken_at(parent.get(), name)) {
      return std::nullopt;
    }
    if (error == ENOENT) {
      continue;  // another process has created it
    }
    if (error != 0 && error != ENOTDIR && error != ELOOP) {
      errno = error;
      throw_errno("open", folder);
    }
    if (error != 0 || !is_own_folder(handle) || !has_marker(handle, out)) {
      if (is_taken_at(parent.get(), name)) {
        throw_foreign_folder(folder, out);
      }
      continue;  // another process has removed it
    }
    lock(handle, out);
    if (!has_name(handle, parent, name)) {
      continue;
    }
    check_content(handle, out);
    return StagingArea(out, std::move(parent), std::move(handle));
  }
  return std::nullopt;
}

StagingArea StagingArea::create(const fs::path& out, const fs::path& root) {
  const fs::path unmarked = unmarked_staging_area(out), folder = staging_area_path(out);
  const std::string unmarked_name = unmarked.filename().string(), name = folder.filename().string();
  Descriptor parent = open_parent(out, root);
  if (!parent.is_open()) {
    throw_errno("open", parent_folder(out));
  }
  Descriptor handle = make_unmarked(parent, unmarked, out);
  try {
    write_marker(handle, unmarked, out);  // synced: a power loss must not keep only the rename
    if (!rename_at(parent.get(), unmarked_name, parent.get(), name, RENAME_NOREPLACE) &&
        (!is_unknown_flag(errno) ||
         !rename_at(parent.get(), unmarked_name, parent.get(), name, 0))) {
      throw_errno("rename", folder);  // also if a non-empty folder has the name
    }
  } catch (const std::exception&) {
    ::unlinkat(handle.get(), kMarker, 0);
    ::unlinkat(parent.get(), unmarked_name.c_str(), AT_REMOVEDIR);
    USER_ERROR_IF(is_taken_at(parent.get(), name),
                  "{}: another run is writing it now; wait for it or give another output folder",
                  out.string());
    throw;
  }
  return StagingArea(out, std::move(parent), std::move(handle));
}

StagingArea StagingArea::make_empty(std::optional<StagingArea> left, const fs::path& out,
                                    const fs::path& root) {
  if (!left) {
    fs::create_directories(parent_folder(out));
    return create(out, root);
  }
  left->clear();
  return std::move(*left);
}

std::pair<int, std::string> StagingArea::location(Slot slot) const {
  return slot == Slot::kOut
             ? std::pair(parent_.get(), out_.filename().string())
             : std::pair(handle_.get(), std::string(slot == Slot::kNew ? "new" : "old"));
}

bool StagingArea::has(Slot slot) const {
  const auto [folder, name] = location(slot);
  return is_taken_at(folder, name);
}

void StagingArea::make_new_folder() const {
  if (::mkdirat(handle_.get(), "new", 0777) != 0) {
    throw_errno("mkdir", new_folder());
  }
}

bool StagingArea::rename(Slot from, Slot to, unsigned flag) const {
  const auto [from_folder, from_name] = location(from);
  const auto [to_folder, to_name] = location(to);
  if (rename_at(from_folder, from_name, to_folder, to_name, flag)) {
    return true;
  }
  if (flag != 0 && is_unknown_flag(errno)) {
    return false;
  }
  throw_errno("rename", out_);
}

void StagingArea::clear() const {
  remove_tree_at(handle_, "new", new_folder());
  remove_tree_at(handle_, "old", old_folder());
}

void StagingArea::remove() {
  clear();
  // The folder keeps its marker or its unmarked name, so that the next run can take it over.
  std::string name = folder_.filename().string();
  const std::string unmarked = unmarked_staging_area(out_).filename().string();
  if (!is_taken_at(parent_.get(), unmarked) &&
      rename_at(parent_.get(), name, parent_.get(), unmarked, 0)) {
    name = unmarked;
  }
  remove_tree_at(handle_, kMarker, folder_ / kMarker);
  if (::unlinkat(parent_.get(), name.c_str(), AT_REMOVEDIR) != 0) {
    throw_errno("rmdir", folder_);
  }
  handle_ = Descriptor();
}

void StagingArea::disown() const { remove_tree_at(handle_, kMarker, folder_ / kMarker); }

StagedFolder::StagedFolder(fs::path out, bool force) : out_(normalize_path(out)), force_(force) {
  try {
    std::optional<StagingArea> left = StagingArea::find(out_);
    if (left && left->has(Slot::kOut) && !left->has(Slot::kNew) && !left->has(Slot::kOld)) {
      left->remove();
      left.reset();
    }
    check_replaceable(out_, force_);
    if (left && has_only_old_copy(*left, out_, force_)) {
      left->rename(Slot::kOld, Slot::kOut);
      sync_folder(parent_folder(out_));
    }
    area_ = StagingArea::make_empty(std::move(left), out_);
    partial_ = area_->new_folder();
    try {
      area_->make_new_folder();
    } catch (const fs::filesystem_error&) {
      remove_quietly(*area_);
      throw;
    }
  } catch (const fs::filesystem_error& error) {
    throw UserError("{}: cannot be written: {}", out_.string(), error.code().message());
  }
}

StagedFolder::~StagedFolder() {
  if (area_) {
    remove_quietly(*area_);
  }
}

void StagedFolder::write_text(const std::string& name, const std::string& text) const {
  const fs::path file = partial_ / name;
  fs::create_directories(file.parent_path());
  write_file(file, text);
}

void StagedFolder::commit() {
  MOE_CHECK(area_, "{} was committed before", out_.string());
  write_output_list(partial_);
  sync_tree(partial_);
  std::string failure;
  try {
    put_in_place(*area_, out_, force_);
  } catch (const UserError& error) {
    failure = error.what();
  } catch (const fs::filesystem_error& error) {
    failure = fmt::format("{}: cannot be put in place: {}", out_.string(), error.code().message());
  }
  StagingArea area = *std::exchange(area_, std::nullopt);
  if (!failure.empty()) {  // keep hours of work
    area.disown();
    throw UserError("{}; what this run made is in {}: rename it", failure, partial_.string());
  }
  sync_folder(parent_folder(out_));
  sync_folder(area.folder());
  try {
    area.remove();
  } catch (const fs::filesystem_error& error) {
    throw UserError("{}: is written, but {} cannot be removed: {}; remove it yourself",
                    out_.string(), area.folder().string(), error.code().message());
  }
}

std::optional<fs::path> find_old_folder(const fs::path& out) {
  const fs::path old = staging_area_path(normalize_path(out)) / "old";
  std::error_code error;
  return fs::is_directory(old, error) ? std::optional(old) : std::nullopt;
}

void check_stageable(const fs::path& out) {
  const fs::path target = normalize_path(out), folder = staging_area_path(target);
  const Descriptor handle = open_folder_at(AT_FDCWD, folder.string());
  if (!is_taken(folder)) {
    return;
  }
  if (!handle.is_open() || !is_own_folder(handle) || !has_marker(handle, target)) {
    throw_foreign_folder(folder, target);
  }
  check_content(handle, target);
}

void remove_leftovers(const fs::path& out, const fs::path& root) {
  const fs::path target = normalize_path(out);
  try {
    if (auto left = StagingArea::find(target, root)) {
      if (left->has(Slot::kOld) && !left->has(Slot::kOut)) {
        return;
      }
      left->remove();
    }
    if (is_taken(unmarked_staging_area(target))) {  // the next write would remove it, too
      StagingArea::make_empty(std::nullopt, target, root).remove();
    }
  } catch (const UserError&) {  // no marker, or locked by another process
  } catch (const fs::filesystem_error&) {
  }
}

void remove_whole(const fs::path& folder, const fs::path& root) {
  const fs::path target = normalize_path(folder);
  auto left = StagingArea::find(target, root);
  struct stat status {};
  const Descriptor parent = open_parent(target, root);
  const bool is_there = parent.is_open() && ::fstatat(parent.get(), target.filename().c_str(),
                                                      &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (!left && !is_there) {
    return;
  }
  USER_ERROR_IF(is_there && !S_ISDIR(status.st_mode),
                "{}: is no folder but a link or a file, and is not removed; move it",
                target.string());
  StagingArea area = StagingArea::make_empty(std::move(left), target, root);
  if (is_there) {
    area.rename(Slot::kOut, Slot::kNew);
    sync_folder(parent_folder(target));
  }
  area.remove();
}

}  // namespace moe::io
