#include "core/io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <random>
#include <system_error>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::io {

namespace fs = std::filesystem;

// Memory that is mapped from the file `name`. A signal handler may neither lock nor allocate, so
// the ranges form a linked list that only grows at its front; entries are reused, never freed.
// Threads may add and remove ranges while another thread faults.
struct MappedRange {
  static constexpr size_t kMaxName = 1024;

  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};          // set last, cleared first; 0: entry not in use
  std::array<char, kMaxName + 4> name{};  // printable, ends with 0
  MappedRange* next = nullptr;
};

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

// Throws for errno: throw_write_error() of `path` if the disk is full, else fail_file() of `place`.
[[noreturn]] void throw_path_error(const fs::path& path, const fs::path& place,
                                   const char* action) {
  if (errno == ENOSPC || errno == EDQUOT) {
    throw_write_error(errno, path);
  }
  fail_file(place.string(), action);
}

// Creates a file named `prefix` and random letters, and sets `path` to that name.
Descriptor make_unique_file(const std::string& prefix, mode_t mode, fs::path& path) {
  for (;;) {
    path = prefix + random_letters();
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file.is_open()) {
      return file;
    }
    if (errno != EEXIST && errno != EINTR) {
      throw_path_error(path, parent_folder(prefix), "no file can be written there");
    }
  }
}

// Locks a new partial file; blocks while a sweep holds the lock. Returns false if the sweep removed
// the file. On file systems without locks a sweep removes nothing.
bool lock_partial(const Descriptor& file) {
  while (::flock(file.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
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

using Handler = struct sigaction;

// Initialized at compile time and never destroyed: a signal may come at any time.
struct Shared {
  std::atomic<MappedRange*> first{nullptr};
  Handler previous = {};  // written once, before our handler is installed
};
Shared& shared() {
  static constinit Shared instance;
  return instance;
}

void write_text(const char* text) {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written <= 0) {
      return;
    }
    text += written;
    left -= static_cast<size_t>(written);
  }
}

// Returns the range that contains `address`, or null.
const MappedRange* find_range(const void* address) {
  const auto byte = reinterpret_cast<uintptr_t>(address);
  for (const MappedRange* range = shared().first.load(); range != nullptr; range = range->next) {
    if (byte < range->end.load() && byte >= range->begin.load()) {
      return range;
    }
  }
  return nullptr;
}

// Calls the previous handler, or restores the default action.
void call_previous_handler(int signal, siginfo_t* info, void* context) {
  const Handler& previous = shared().previous;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // A fault repeats when the instruction is retried; a sent signal must be raised again.
    ::sigaction(signal, &previous, nullptr);
    if (info->si_code <= 0) {
      ::raise(signal);
    }
  }
}

void handle_sigbus(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;
  const MappedRange* range = is_fault ? find_range(info->si_addr) : nullptr;
  if (range == nullptr) {
    call_previous_handler(signal, info, context);
    return;
  }
  write_text("moe: ");
  write_text(range->name.data());
  write_text(
      ": was cut short while it was read, or its disk failed; put the whole file there and start "
      "again\n");
  ::_exit(1);
}

void install_handler() {
  Handler ours = {};
  ours.sa_sigaction = handle_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, nullptr, &shared().previous);
  ::sigaction(SIGBUS, &ours, nullptr);
}

// Returns an unused entry of the list, or adds a new one.
MappedRange* take_range() {
  for (MappedRange* range = shared().first.load(); range != nullptr; range = range->next) {
    if (!range->taken.exchange(true)) {
      return range;
    }
  }
  auto* range = new MappedRange;  // NOLINT(cppcoreguidelines-owning-memory): never freed
  range->next = shared().first.load();
  while (!shared().first.compare_exchange_weak(range->next, range)) {
  }
  return range;
}

MappedRange* add_range(const void* data, size_t bytes, const fs::path& path) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const std::string name = printable(path.string(), MappedRange::kMaxName);
  MappedRange* range = take_range();
  std::copy_n(name.c_str(), std::min(name.size() + 1, range->name.size()), range->name.begin());
  range->name.back() = '\0';
  const auto begin = reinterpret_cast<uintptr_t>(data);
  range->begin = begin;
  range->end = begin + bytes;
  return range;
}

}  // namespace

Descriptor create_file(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    throw_path_error(path, path, "cannot be written");
  }
  return file;
}

void throw_write_error(int error, const fs::path& path) {
  USER_ERROR_IF(error == ENOSPC || error == EDQUOT || error == EFBIG,
                "disk full: {} cannot grow ({}); free some space or write to another disk",
                path.string(), std::strerror(error));
  throw std::system_error(error, std::generic_category(), path.string());
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes, const fs::path& path,
               std::optional<uint64_t> offset) {
  constexpr size_t kMaxBlockBytes = size_t{64} << 20;  // one write() takes at most 2 GiB
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kMaxBlockBytes);
    const ssize_t written =
        offset ? ::pwrite(file.get(), bytes.data(), size, static_cast<off_t>(*offset))
               : ::write(file.get(), bytes.data(), size);
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset = offset ? std::optional(*offset + static_cast<uint64_t>(written)) : offset;
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

int check_opened(int descriptor, const std::string& file) {
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE)) {
    fail_file(file, "cannot be opened");
  }
  return descriptor;
}

std::string read_file_start(const fs::path& file, size_t max_bytes) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const Descriptor opened(check_opened(
      ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), file.string()));
  return read_start(opened, max_bytes);
}

FileReader read_again(const Descriptor& file, const fs::path& path) {
  const int copy = ::fcntl(file.get(), F_DUPFD_CLOEXEC, 0);
  return {Descriptor(check_opened(copy, path.string())), path.string()};
}

void sync_folder(const fs::path& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) {
    throw std::system_error(errno, std::generic_category(), folder.string());
  }
  // EINVAL: a network file system that does not sync folders.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) {
    throw_write_error(errno, folder);
  }
}

void write_file(const fs::path& path, const std::string& text) {
  const Descriptor file = create_file(path);
  write_all(file, std::as_bytes(std::span(text)), path);
  sync(file, path);
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
  } while (!lock_partial(file_));
}

PartialFile::~PartialFile() {
  if (file_.is_open()) {
    ::unlink(path_.c_str());
  }
}

void PartialFile::commit() {
  sync(file_, path_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    throw_path_error(target_, target_, "cannot be replaced");
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
    struct stat status {};
    if (file.is_open() && ::fstat(file.get(), &status) == 0 && status.st_nlink == 1 &&
        status.st_uid == ::geteuid() && read_start(file, first_bytes.size()) == first_bytes &&
        ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
  }
}

MappedFile::MappedFile(Descriptor file, const fs::path& path) : descriptor_(std::move(file)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    fail_file(path.string(), "cannot be read");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) {
    return;  // mmap() refuses an empty mapping; bytes() is an empty span
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_.get(), 0);
  if (mapped == MAP_FAILED) {
    fail_file(path.string(), "cannot be mapped into memory");
  }
  data_ = static_cast<const std::byte*>(mapped);
  range_ = add_range(data_, size_, path);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    range_->end = 0;  // before the addresses can be reused
    range_->taken = false;
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(range_, other.range_);
  return *this;
}

void MappedFile::drop(std::span<const std::byte> part) const {
  if (part.empty()) {
    return;
  }
  MOE_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  // The mapping starts on a page boundary; other tensors on the outer pages cost a minor fault.
  const auto offset = static_cast<size_t>(part.data() - data_);
  const size_t first = offset / page * page;
  ::madvise(const_cast<std::byte*>(data_) + first, offset + part.size() - first, MADV_DONTNEED);
}

}  // namespace moe::io
