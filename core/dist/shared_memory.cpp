#include "core/dist/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace moe::dist {
namespace {

class File {
 public:
  explicit File(int descriptor, const std::string& what) : descriptor_(descriptor) {
    if (descriptor < 0) {
      throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
    }
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

constexpr std::chrono::milliseconds kPause{2};
constexpr int kLooks = 50;  // pauses between them

std::string await(Store& store, const std::string& key, Seconds timeout,
                  const std::function<void()>& look) {
  const auto begin = std::chrono::steady_clock::now();
  for (int pauses = 1; std::chrono::steady_clock::now() - begin < timeout; ++pauses) {
    if (const auto text = store.read(key)) {
      return *text;
    }
    std::this_thread::sleep_for(kPause);
    if (pauses % kLooks == 0) {
      look();
    }
  }
  throw std::runtime_error("shared memory: the others did not come");
}

void* map(const File& file, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    throw std::runtime_error(fmt::format("shared memory: {}", std::strerror(errno)));
  }
  return data;
}

}  // namespace

SharedMemory::SharedMemory(Store& store, const std::string& key, int64_t rank, int64_t size,
                           size_t bytes, Seconds timeout, const std::function<void()>& look)
    : bytes_(bytes) {
  if (rank != 0) {
    const std::string path = await(store, key, timeout, look);
    data_ = map(File(open(path.c_str(), O_RDWR | O_CLOEXEC), path), bytes);
    store.set(fmt::format("{}.{}", key, rank), "here");
    return;
  }
  const File file(memfd_create("moe", MFD_CLOEXEC), "shared memory");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error(fmt::format("shared memory: {}", std::strerror(errno)));
  }
  data_ = map(file, bytes);
  store.set(key, fmt::format("/proc/{}/fd/{}", getpid(), file.get()));
  for (int64_t other = 1; other < size; ++other) {
    await(store, fmt::format("{}.{}", key, other), timeout, look);
  }
}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

}  // namespace moe::dist
