#pragma once
// Writing of files (handles interrupted calls, short writes and full disks), files that appear
// under their name complete or not at all, and mapped files. core/base/read_file.h opens files for
// reading.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/read_file.h"

namespace moe::io {

// Creates or empties a file and opens it for writing. Throws UserError if that fails.
Descriptor create_file(const std::filesystem::path& path);

// Throws UserError "disk full" if `error` is ENOSPC, EDQUOT or EFBIG, else std::system_error.
[[noreturn]] void throw_write_error(int error, const std::filesystem::path& path);

// Writes `bytes` at the file's position, or at byte `offset`. `path` names the file in errors.
void write_all(const Descriptor& file, std::span<const std::byte> bytes,
               const std::filesystem::path& path, std::optional<uint64_t> offset = {});
// Blocks until the file, or the entries of the folder, are on the disk.
void sync(const Descriptor& file, const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& folder);

// Returns `descriptor`, the result of open() for `file`. Throws std::runtime_error if open() failed
// because too many files are open. Callers treat other failures as a missing file.
int check_opened(int descriptor, const std::string& file);

// Returns up to `max_bytes` bytes from the start of `file`, or "" if it cannot be opened, is a link
// or is not a regular file. Throws std::runtime_error if too many files are open.
std::string read_file_start(const std::filesystem::path& file, size_t max_bytes);

// Returns a reader of the open `file`, which shares the offset of `file`.
FileReader read_again(const Descriptor& file, const std::filesystem::path& path);

// Writes and syncs a small file.
void write_file(const std::filesystem::path& path, const std::string& text);

// Returns the parent of `path`; "." if `path` has none.
std::filesystem::path parent_folder(const std::filesystem::path& path);

// Returns true if `path` exists; a dangling symbolic link counts.
bool is_taken(const std::filesystem::path& path);

// Returns `bytes` as text in decimal units: "13.5 GB", "812 bytes".
std::string size_text(uint64_t bytes);

// A file that appears under its name complete or not at all. It is written as NAME.partial-XXXXXX
// and renamed by commit(). Several processes may write the same name at once, each its own file;
// the last commit wins. sweep_partial_files() removes the partial file of a killed process.
class PartialFile {
 public:
  // The folder of `target` must exist. `mode` is that of open(2). Throws UserError if no file can
  // be created there.
  explicit PartialFile(std::filesystem::path target, mode_t mode = 0666);
  ~PartialFile();  // removes the file if it was not committed
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const Descriptor& file() const { return file_; }
  const std::filesystem::path& path() const { return path_; }
  void commit();  // syncs and renames

 private:
  std::filesystem::path target_, path_;
  Descriptor file_;
};

// Writes a small file as a PartialFile. A symbolic link of that name is replaced, not followed.
void write_whole(const std::filesystem::path& file, const std::string& text);

// Creates a file without a name in `folder`. Its space is freed when it is closed or the process
// ends.
Descriptor make_nameless_file(const std::filesystem::path& folder);

// Removes the partial files of `folder` that no process is writing: unlocked regular files of this
// user that begin with `first_bytes`, if is_target(name) is true for the name of the target.
void sweep_partial_files(const std::filesystem::path& folder,
                         const std::function<bool(std::string_view)>& is_target,
                         std::string_view first_bytes);

struct MappedRange;  // entry of the list that the SIGBUS handler searches (file.cpp)

// A file mapped read-only. Its pages belong to the kernel's page cache and are not anonymous memory
// of this process. Spans are valid while the object lives. A write through a span ends the process.
//
// Reading raises SIGBUS if another program has truncated the file or the disk fails. The first
// mapping installs a handler that prints the name of the file and ends the process with exit
// code 1. A SIGBUS outside all mappings goes to the previous handler (of a sanitizer or LibTorch),
// or has its default effect.
class MappedFile {
 public:
  // Throws UserError if the file is missing, not a regular file, not readable or cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path) : MappedFile(open_to_read(path), path) {}
  // Maps a file that is open for reading; `path` names it in errors.
  MappedFile(Descriptor file, const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int descriptor() const { return descriptor_.get(); }  // for copies inside the kernel
  // Unmaps the pages of `part`, so that a streaming copy keeps none resident. Later reads load them
  // from the page cache or the disk.
  void drop(std::span<const std::byte> part) const;

 private:
  Descriptor descriptor_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedRange* range_ = nullptr;
};

}  // namespace moe::io
