// A handler may neither lock nor allocate, so the ranges are a list that only grows at its front:
// an entry that is given back is used again and never freed.
#include "core/io/mapped_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "core/base/utf8.h"

namespace moe::io {

struct MappedRange::Entry {
  static constexpr size_t kMaxName = 1024;

  std::atomic<bool> taken{true};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};          // set last, cleared first: 0 = not to be looked at
  std::array<char, kMaxName + 4> name{};  // printable, ends with 0
  Entry* next = nullptr;
};

namespace {

using Entry = MappedRange::Entry;
using Handler = struct sigaction;

// Both outlive every thread and are made by the compiler: a signal may come at any time.
struct Shared {
  std::atomic<Entry*> first{nullptr};
  Handler before = {};  // written once, before our handler is there
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

const Entry* find_entry(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Entry* entry = shared().first.load(); entry != nullptr; entry = entry->next) {
    if (at < entry->end.load() && at >= entry->begin.load()) {
      return entry;
    }
  }
  return nullptr;
}

// Not ours: what would have happened without us.
void pass_on(int signal, siginfo_t* info, void* context) {
  const Handler& before = shared().before;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // A fault comes again when the instruction is tried again; one that was sent has to be sent.
    ::sigaction(signal, &before, nullptr);
    if (info->si_code <= 0) {
      ::raise(signal);
    }
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  const bool is_fault = info->si_code > 0;
  const Entry* entry = is_fault ? find_entry(info->si_addr) : nullptr;
  if (entry == nullptr) {
    pass_on(signal, info, context);
    return;
  }
  write_text("moe: ");
  write_text(entry->name.data());
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

// An entry that nobody uses, or a new one.
Entry* take_entry() {
  for (Entry* entry = shared().first.load(); entry != nullptr; entry = entry->next) {
    if (!entry->taken.exchange(true)) {
      return entry;
    }
  }
  auto* entry = new Entry;  // NOLINT(cppcoreguidelines-owning-memory): a handler may look at it
  entry->next = shared().first.load();
  while (!shared().first.compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

}  // namespace

MappedRange::MappedRange(const void* data, size_t bytes, const std::filesystem::path& path) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const std::string name = printable(path.string(), Entry::kMaxName);
  entry_ = take_entry();
  std::copy_n(name.c_str(), std::min(name.size() + 1, entry_->name.size()), entry_->name.begin());
  entry_->name.back() = '\0';
  const auto begin = reinterpret_cast<uintptr_t>(data);
  entry_->begin = begin;
  entry_->end = begin + bytes;
}

MappedRange::~MappedRange() {
  if (entry_ != nullptr) {
    entry_->end = 0;
    entry_->taken = false;
  }
}

}  // namespace moe::io
