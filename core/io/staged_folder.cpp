#include "core/io/staged_folder.h"

#include <cstdio>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::io {

namespace fs = std::filesystem;

using Slot = StagingArea::Slot;

namespace {

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
bool finds_replaced(const StagingArea& area, const fs::path& out, bool force) {
  if (!area.has(Slot::kOld)) {
    return false;
  }
  if (!area.has(Slot::kOut)) {
    USER_ERROR_IF(!force,
                  "{0}: a run was killed while it replaced it, the old one is {1}; rename that, or "
                  "give --force to replace it",
                  out.string(), area.replaced().string());
    check_removable(area.replaced());
    return true;
  }
  if (area.has(Slot::kNew)) {  // so OUT is not the result of the killed run
    throw UserError(
        "{}: was made after a run was killed that had moved the one before to {}; move that one, "
        "or give another output folder",
        out.string(), area.replaced().string());
  }
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

// Swaps the names of the old and the new folder in one step if the file system can. The old one is
// removed last, with the area.
void put_in_place(const StagingArea& area, const fs::path& out, bool force) {
  if (!area.has(Slot::kOut)) {
    if (!area.rename(Slot::kNew, Slot::kOut, RENAME_NOREPLACE)) {
      area.rename(Slot::kNew, Slot::kOut);
    }
    return;
  }
  USER_ERROR_IF(!force, "{}: was made by another while this run wrote", out.string());
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
      where = "; the one before is " + area.replaced().string();
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

StagedFolder::StagedFolder(fs::path out, bool force) : out_(normalized(out)), force_(force) {
  try {
    std::optional<StagingArea> left = StagingArea::find(out_);
    check_replaceable(out_, force_);
    if (left && finds_replaced(*left, out_, force_)) {
      left->rename(Slot::kOld, Slot::kOut);
      sync_folder(parent_folder(out_));
    }
    area_ = StagingArea::emptied(std::move(left), out_);
    partial_ = area_->fresh();
    try {
      area_->make_fresh();
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

}  // namespace moe::io
