#include "core/io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe::io {

namespace fs = std::filesystem;

// Memory that is mapped from the file `name`. A signal handler may neither lock nor allocate, so
// the ranges form a list that only grows at its front: an entry that is given back is used again
// and never freed. Any thread may add and remove ranges while another one faults.
struct MappedRange {
  static constexpr size_t kMaxName = 1024;

  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};          // set last, cleared first; 0: the entry is not in use
  std::array<char, kMaxName + 4> name{};  // printable, ends with 0
  MappedRange* next = nullptr;
};

namespace {

using Handler = struct sigaction;

// Initialized at compile time and never destroyed: a signal may come at any time.
struct Shared {
  std::atomic<MappedRange*> first{nullptr};
  Handler before = {};  // written once, before our handler is installed
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

// Returns the range that holds `address`, or null.
const MappedRange* find_range(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappedRange* range = shared().first.load(); range != nullptr; range = range->next) {
    if (at < range->end.load() && at >= range->begin.load()) {
      return range;
    }
  }
  return nullptr;
}

// Does what would have happened without our handler.
void pass_on(int signal, siginfo_t* info, void* context) {
  const Handler& before = shared().before;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // A fault repeats when the instruction is retried; a signal that was sent is sent again.
    ::sigaction(signal, &before, nullptr);
    if (info->si_code <= 0) {
      ::raise(signal);
    }
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;
  const MappedRange* range = is_fault ? find_range(info->si_addr) : nullptr;
  if (range == nullptr) {
    pass_on(signal, info, context);
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
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, nullptr, &shared().before);
  ::sigaction(SIGBUS, &ours, nullptr);
}

// Returns an unused range of the list, or adds a new one.
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

void remove_range(MappedRange* range) {
  if (range != nullptr) {
    range->end = 0;
    range->taken = false;
  }
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : MappedFile(open_to_read(path), path) {}

MappedFile::MappedFile(Descriptor file, const fs::path& path) : descriptor_(std::move(file)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) {
    return;  // mmap() refuses an empty mapping; bytes() is an empty span
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_.get(), 0);
  if (mapped == MAP_FAILED) {
    throw UserError("{}: cannot be mapped into memory: {}", path.string(), std::strerror(errno));
  }
  data_ = static_cast<const std::byte*>(mapped);
  range_ = add_range(data_, size_, path);
}

MappedFile::~MappedFile() {
  remove_range(range_);  // before the addresses can be reused
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      range_(std::exchange(other.range_, nullptr)) {}

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
  // The mapping starts on a page boundary. A page shared with a neighbouring tensor costs it a
  // minor fault.
  const auto offset = static_cast<size_t>(part.data() - data_);
  const size_t first = offset / page * page;
  ::madvise(const_cast<std::byte*>(data_) + first, offset + part.size() - first, MADV_DONTNEED);
}

}  // namespace moe::io
