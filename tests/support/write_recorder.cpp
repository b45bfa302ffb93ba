// LD_PRELOAD library for tests of power loss: records the file operations of a process below
// one folder in order. tests/support/power_loss.h replays the record up to any point without the
// data that were not synced.
//
//   WRITE_RECORDER_ROOT   the folder, absolute, without symbolic links
//   WRITE_RECORDER_LOG    the file to record to, outside of it
//
// The record is a sequence of: char operation; u64 inode; u64 number; u32 length of the first text
// and of the second; the texts. Operations:
//   C path                a file is made (number 1: a folder)    inode: its own
//   W offset, data        bytes are written                      inode: the file's
//   T size                the file is cut or grown to this size  inode: the file's
//   S                     fsync or fdatasync of a file or folder inode: its own
//   R from, to            rename (number 1: the two change names)
//   U path                a file is removed (number 1: a folder)
// Two locks would order system calls and records differently, so one lock is held over both.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>

namespace {

namespace fs = std::filesystem;

std::recursive_mutex& lock() {
  static auto* mutex = new std::recursive_mutex;  // NOLINT: outlives every static destructor
  return *mutex;
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

const std::string& root() {
  static const auto* const value = [] {
    const char* given = std::getenv("WRITE_RECORDER_ROOT");
    return new std::string(given == nullptr ? "" : given);  // NOLINT: as above
  }();
  return *value;
}

bool is_inside(const std::string& path) {
  return !root().empty() && path.starts_with(root()) &&
         (path.size() == root().size() || path[root().size()] == '/');
}

void put(std::string& out, const void* bytes, size_t count) {
  out.append(static_cast<const char*>(bytes), count);
}

void record(char operation, uint64_t inode, uint64_t number, const std::string& first = "",
            const std::string& second = "") {
  static const int log =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, std::getenv("WRITE_RECORDER_LOG"),
                                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  std::string line(1, operation);
  put(line, &inode, sizeof inode);
  put(line, &number, sizeof number);
  for (const auto* text : {&first, &second}) {
    const auto size = static_cast<uint32_t>(text->size());
    put(line, &size, sizeof size);
  }
  line += first + second;
  for (size_t written = 0; written < line.size();) {
    const long count = ::syscall(SYS_write, log, line.data() + written, line.size() - written);
    if (count <= 0) {
      std::abort();
    }
    written += static_cast<size_t>(count);
  }
}

std::string path_of(int descriptor) {
  char text[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), text, sizeof text);
  return size <= 0 ? "" : std::string(text, static_cast<size_t>(size));
}

std::string absolute(int folder, const char* path) {
  if (path[0] == '/') {
    return fs::path(path).lexically_normal();
  }
  const std::string base = folder == AT_FDCWD ? fs::current_path().string() : path_of(folder);
  std::string whole = (fs::path(base) / path).lexically_normal();
  while (whole.size() > 1 && whole.back() == '/') {
    whole.pop_back();
  }
  return whole;
}

// Returns the inode of a descriptor in the folder, 0 if it is elsewhere.
uint64_t inode_of(int descriptor) {
  struct stat status {};
  if (!is_inside(path_of(descriptor)) || ::fstat(descriptor, &status) != 0) {
    return 0;
  }
  return status.st_ino;
}

uint64_t inode_at(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

uint64_t size_of(int descriptor) {
  struct stat status {};
  ::fstat(descriptor, &status);
  return static_cast<uint64_t>(status.st_size);
}

// Records that an open created or truncated a file.
void opened(int descriptor, const std::string& path, uint64_t inode_before, bool cuts) {
  const int error = errno;
  if (descriptor >= 0 && is_inside(path)) {
    const uint64_t inode = inode_of(descriptor);
    if (inode != inode_before) {
      record('C', inode, 0, path);
    } else if (cuts && inode != 0) {
      record('T', inode, 0);
    }
  }
  errno = error;
}

// Records the bytes that were written at `offset`.
void wrote(int descriptor, uint64_t offset, const char* bytes, ssize_t count) {
  const int error = errno;
  const uint64_t inode = count > 0 ? inode_of(descriptor) : 0;
  if (inode != 0) {
    record('W', inode, offset, std::string(bytes, static_cast<size_t>(count)));
  }
  errno = error;
}

// Records bytes that the kernel copied to `offset`.
void copied(int descriptor, uint64_t offset, ssize_t count) {
  if (count > 0 && inode_of(descriptor) != 0) {
    std::string bytes(static_cast<size_t>(count), '\0');
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const int again = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, link.c_str(), O_RDONLY));
    if (::pread(again, bytes.data(), bytes.size(), static_cast<off_t>(offset)) != count) {
      std::abort();
    }
    ::close(again);
    wrote(descriptor, offset, bytes.data(), count);
  }
}

uint64_t find_place(int descriptor) {
  const bool appends = (::fcntl(descriptor, F_GETFL) & O_APPEND) != 0;
  return appends ? size_of(descriptor) : static_cast<uint64_t>(::lseek(descriptor, 0, SEEK_CUR));
}

int open_recorded(const char* name, int folder, const char* path, int flags, mode_t mode) {
  const std::lock_guard guard(lock());
  const std::string whole = absolute(folder, path);
  const uint64_t before = is_inside(whole) ? inode_at(whole) : 0;
  const int descriptor =
      std::strncmp(name, "openat", 6) == 0
          ? real<int(int, const char*, int, ...)>(name)(folder, path, flags, mode)
          : real<int(const char*, int, ...)>(name)(path, flags, mode);
  opened(descriptor, whole, before, (flags & O_TRUNC) != 0);
  return descriptor;
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

int renamed(int result, const std::string& from, const std::string& to, bool exchanges) {
  if (result == 0 && is_inside(from) && is_inside(to)) {
    record('R', 0, exchanges ? 1 : 0, from, to);
  }
  return result;
}

int removed(int result, const std::string& path, bool is_folder) {
  if (result == 0 && is_inside(path)) {
    record('U', 0, is_folder ? 1 : 0, path);
  }
  return result;
}

int made_folder(int result, const std::string& path) {
  if (result == 0 && is_inside(path)) {
    record('C', inode_at(path), 1, path);
  }
  return result;
}

int synced(int result, int descriptor) {
  if (result == 0) {
    if (const uint64_t inode = inode_of(descriptor); inode != 0) {
      record('S', inode, 0);
    }
  }
  return result;
}

int resized(int result, int descriptor) {
  if (result == 0) {
    if (const uint64_t inode = inode_of(descriptor); inode != 0) {
      record('T', inode, size_of(descriptor));
    }
  }
  return result;
}

}  // namespace

extern "C" {

// Defines FUNCTION with the name NAME and with the name NAME64.
#define BOTH(FUNCTION, NAME) FUNCTION(NAME) FUNCTION(NAME##64)

#define OPEN(NAME)                                            \
  int NAME(const char* path, int flags, ...) {                \
    va_list arguments;                                        \
    va_start(arguments, flags);                               \
    const mode_t mode = mode_in(flags, arguments);            \
    va_end(arguments);                                        \
    return open_recorded(#NAME, AT_FDCWD, path, flags, mode); \
  }
BOTH(OPEN, open)

#define OPENAT(NAME)                                        \
  int NAME(int folder, const char* path, int flags, ...) {  \
    va_list arguments;                                      \
    va_start(arguments, flags);                             \
    const mode_t mode = mode_in(flags, arguments);          \
    va_end(arguments);                                      \
    return open_recorded(#NAME, folder, path, flags, mode); \
  }
BOTH(OPENAT, openat)

#define FOPEN(NAME)                                                               \
  FILE* NAME(const char* path, const char* mode) {                                \
    const std::lock_guard guard(lock());                                          \
    const std::string whole = absolute(AT_FDCWD, path);                           \
    const uint64_t before = is_inside(whole) ? inode_at(whole) : 0;               \
    FILE* file = real<FILE*(const char*, const char*)>(#NAME)(path, mode);        \
    opened(file == nullptr ? -1 : ::fileno(file), whole, before, mode[0] == 'w'); \
    return file;                                                                  \
  }
BOTH(FOPEN, fopen)

ssize_t write(int descriptor, const void* bytes, size_t size) {
  const std::lock_guard guard(lock());
  const uint64_t place = find_place(descriptor);
  const ssize_t count = real<ssize_t(int, const void*, size_t)>("write")(descriptor, bytes, size);
  wrote(descriptor, place, static_cast<const char*>(bytes), count);
  return count;
}

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  const std::lock_guard guard(lock());
  const uint64_t place = find_place(descriptor);
  const ssize_t written =
      real<ssize_t(int, const struct iovec*, int)>("writev")(descriptor, parts, count);
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    put(bytes, parts[i].iov_base, parts[i].iov_len);
  }
  wrote(descriptor, place, bytes.data(), written);
  return written;
}

#define PWRITE(NAME)                                                                            \
  ssize_t NAME(int descriptor, const void* bytes, size_t size, off_t offset) {                  \
    const std::lock_guard guard(lock());                                                        \
    const ssize_t count =                                                                       \
        real<ssize_t(int, const void*, size_t, off_t)>(#NAME)(descriptor, bytes, size, offset); \
    wrote(descriptor, static_cast<uint64_t>(offset), static_cast<const char*>(bytes), count);   \
    return count;                                                                               \
  }
BOTH(PWRITE, pwrite)

#define SENDFILE(NAME)                                                                           \
  ssize_t NAME(int out, int in, off_t* offset, size_t size) {                                    \
    const std::lock_guard guard(lock());                                                         \
    const uint64_t place = find_place(out);                                                      \
    const ssize_t count = real<ssize_t(int, int, off_t*, size_t)>(#NAME)(out, in, offset, size); \
    copied(out, place, count);                                                                   \
    return count;                                                                                \
  }
BOTH(SENDFILE, sendfile)

ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t size, unsigned flags) {
  const std::lock_guard guard(lock());
  const uint64_t place = to != nullptr ? static_cast<uint64_t>(*to) : find_place(out);
  const ssize_t count = real<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>(
      "copy_file_range")(in, from, out, to, size, flags);
  copied(out, place, count);
  return count;
}

#define FTRUNCATE(NAME)                                                         \
  int NAME(int descriptor, off_t size) {                                        \
    const std::lock_guard guard(lock());                                        \
    return resized(real<int(int, off_t)>(#NAME)(descriptor, size), descriptor); \
  }
BOTH(FTRUNCATE, ftruncate)

#define TRUNCATE(NAME)                                                   \
  int NAME(const char* path, off_t size) {                               \
    const std::lock_guard guard(lock());                                 \
    const int result = real<int(const char*, off_t)>(#NAME)(path, size); \
    const std::string whole = absolute(AT_FDCWD, path);                  \
    if (result == 0 && is_inside(whole)) {                               \
      record('T', inode_at(whole), static_cast<uint64_t>(size));         \
    }                                                                    \
    return result;                                                       \
  }
BOTH(TRUNCATE, truncate)

#define FALLOCATE(NAME)                                                                      \
  int NAME(int descriptor, int mode, off_t offset, off_t size) {                             \
    const std::lock_guard guard(lock());                                                     \
    return resized(real<int(int, int, off_t, off_t)>(#NAME)(descriptor, mode, offset, size), \
                   descriptor);                                                              \
  }
BOTH(FALLOCATE, fallocate)

int rename(const char* from, const char* to) {
  const std::lock_guard guard(lock());
  return renamed(real<int(const char*, const char*)>("rename")(from, to), absolute(AT_FDCWD, from),
                 absolute(AT_FDCWD, to), false);
}

int renameat2(int folder, const char* from, int target, const char* to, unsigned flags) {
  const std::lock_guard guard(lock());
  return renamed(real<int(int, const char*, int, const char*, unsigned)>("renameat2")(
                     folder, from, target, to, flags),
                 absolute(folder, from), absolute(target, to), (flags & RENAME_EXCHANGE) != 0);
}

int unlink(const char* path) {
  const std::lock_guard guard(lock());
  return removed(real<int(const char*)>("unlink")(path), absolute(AT_FDCWD, path), false);
}

int remove(const char* path) {
  const std::lock_guard guard(lock());
  const bool is_folder = fs::is_directory(fs::symlink_status(path));
  return removed(real<int(const char*)>("remove")(path), absolute(AT_FDCWD, path), is_folder);
}

int unlinkat(int folder, const char* path, int flags) {
  const std::lock_guard guard(lock());
  const std::string whole = absolute(folder, path);  // while the folder still has a path
  return removed(real<int(int, const char*, int)>("unlinkat")(folder, path, flags), whole,
                 (flags & AT_REMOVEDIR) != 0);
}

int mkdir(const char* path, mode_t mode) {
  const std::lock_guard guard(lock());
  return made_folder(real<int(const char*, mode_t)>("mkdir")(path, mode), absolute(AT_FDCWD, path));
}

int mkdirat(int folder, const char* path, mode_t mode) {
  const std::lock_guard guard(lock());
  return made_folder(real<int(int, const char*, mode_t)>("mkdirat")(folder, path, mode),
                     absolute(folder, path));
}

int fsync(int descriptor) {
  const std::lock_guard guard(lock());
  return synced(real<int(int)>("fsync")(descriptor), descriptor);
}

int fdatasync(int descriptor) {
  const std::lock_guard guard(lock());
  return synced(real<int(int)>("fdatasync")(descriptor), descriptor);
}

}  // extern "C"
