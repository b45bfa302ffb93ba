// A bump allocator over one range of addresses. Addresses are not reused, so that freed ones stay
// invalid.

#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>

namespace emulated {

namespace {

constexpr size_t kReserved = size_t{1} << 36, kPage = 4096;

class Memory {
 public:
  Memory() {
    void* range =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      throw std::bad_alloc();
    }
    begin_ = static_cast<char*>(range);
  }

  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t whole = (bytes + kPage) / kPage * kPage;  // a null tensor has an address too
    if (used_ + whole > kReserved) {
      throw std::bad_alloc();
    }
    char* memory = begin_ + used_;
    used_ += whole;
    sizes_[memory] = whole;
    live_ += whole;
    peak_ = std::max(peak_, live_);
    protect(memory, whole, PROT_READ | PROT_WRITE);
    std::memset(memory, 0xFF, whole);
    if (awake_ == 0) {
      protect(memory, whole, PROT_NONE);
    }
    return memory;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto size = sizes_.find(memory);
    if (size != sizes_.end()) {
      madvise(memory, size->second, MADV_DONTNEED);
      live_ -= size->second;
      sizes_.erase(size);
    }
  }

  size_t peak() {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

  void wake(int change) {
    const std::lock_guard lock(mutex_);
    const int before = awake_;
    awake_ += change;
    if ((before == 0) != (awake_ == 0) && used_ > 0) {
      protect(begin_, used_, awake_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
  }

 private:
  static void protect(char* memory, size_t bytes, int how) {
    if (mprotect(memory, bytes, how) != 0) {
      throw std::runtime_error("mprotect of the emulated GPU's memory failed");
    }
  }

  std::mutex mutex_;
  char* begin_ = nullptr;
  size_t used_ = 0, live_ = 0, peak_ = 0;
  int awake_ = 0;
  std::map<void*, size_t> sizes_;
};

// Never destroyed: LibTorch's thread of the device gives the tensors of a last backward back after
// main() has returned.
Memory& memory() {
  static Memory* const memory = std::make_unique<Memory>().release();
  return *memory;
}

}  // namespace

Awake::Awake() { memory().wake(1); }
Awake::~Awake() { memory().wake(-1); }

void* take_memory(size_t bytes) { return memory().take(bytes); }
void give_back_memory(void* given) { memory().give_back(given); }
size_t peak_memory() { return memory().peak(); }

}  // namespace emulated
