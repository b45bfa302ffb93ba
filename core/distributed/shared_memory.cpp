#include "core/distributed/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/distributed/descriptor_passing.h"
#include "core/distributed/nonce.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

constexpr size_t kPage = 64 << 10;  // a multiple of every machine's
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::chrono::milliseconds kArrivalPause{2};
constexpr int kLooks = 50;  // pauses between them

[[noreturn]] void fail_to_share(const std::string& words) {
  throw std::runtime_error("shared memory: " + words);
}
[[noreturn]] void fail_by_system() { fail_to_share(std::strerror(errno)); }

size_t round_to_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// At the beginning of a pool.
struct PoolHeader {
  std::atomic<uint64_t> taken;  // bytes behind the header's page
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// What `attempt` finds, asked until it finds something.
template <typename Attempt>
auto await(const MemoryMeeting& meeting, const Attempt& attempt) {
  WaitClock clock;
  for (int pauses = 1; clock.look() < meeting.timeout; ++pauses) {
    if (auto found = attempt()) {
      return std::move(*found);
    }
    std::this_thread::sleep_for(kArrivalPause);
    if (pauses % kLooks == 0) {
      meeting.look();
    }
  }
  fail_to_share("the others did not come");
}

// The value of the meeting's key, once it has one of the right form.
template <typename Parse>
auto await_value(const MemoryMeeting& meeting, const Parse& parse) {
  return await(meeting, [&] {
    const auto text = meeting.store.read(meeting.key);
    return text ? parse(*text) : std::nullopt;
  });
}

std::optional<size_t> parse_offset(const std::string& text) {
  size_t offset = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, offset);
  return error == std::errc() && last == end && !text.empty() ? std::optional(offset)
                                                              : std::nullopt;
}

std::optional<std::string> parse_nonce(const std::string& text) {
  return is_nonce(text) ? std::optional(text) : std::nullopt;
}

Mapping share_from_pool(const MemoryMeeting& meeting, size_t bytes) {
  if (meeting.rank == 0) {
    const size_t offset = meeting.pool->take(bytes);
    meeting.store.set(meeting.key, fmt::format("{}", offset));
    return meeting.pool->map(offset, bytes);
  }
  return meeting.pool->map(await_value(meeting, parse_offset), bytes);
}

Mapping give_to_others(const MemoryMeeting& meeting, size_t bytes) {
  const Descriptor memory = make_sealed_memory(bytes);
  Mapping mapping(memory, 0, bytes);
  DescriptorOffer offer(memory);
  meeting.store.set(meeting.key, offer.name());
  await(meeting, [&] {
    offer.serve();
    const auto others = static_cast<size_t>(meeting.size - 1);
    return offer.receivers().size() == others ? std::optional(true) : std::nullopt;
  });
  return mapping;
}

Mapping receive_from_first(const MemoryMeeting& meeting, size_t bytes) {
  DescriptorRequest request(await_value(meeting, parse_nonce), meeting.rank);
  const Descriptor memory = await(meeting, [&] { return request.receive(); });
  const size_t received = sealed_memory_bytes(memory);
  if (received != bytes) {
    fail_to_share(fmt::format("{} bytes came where {} were expected", received, bytes));
  }
  return Mapping(memory, 0, bytes);
}

}  // namespace

Descriptor make_sealed_memory(size_t bytes) {
  Descriptor memory = make_memory_file();
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    fail_by_system();
  }
  return memory;
}

size_t sealed_memory_bytes(const Descriptor& memory) {
  struct stat status {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (fstat(memory.get(), &status) != 0 || seals < 0 || (seals & kSeals) != kSeals) {
    fail_to_share("what was handed over can change its size");
  }
  if (status.st_uid != geteuid()) {
    fail_to_share("what was handed over belongs to another user");
  }
  return static_cast<size_t>(status.st_size);
}

Mapping::Mapping(const Descriptor& memory, size_t offset, size_t bytes)
    : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(),
                 static_cast<off_t>(offset))),
      bytes_(bytes) {
  if (data_ == MAP_FAILED) {
    fail_by_system();
  }
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

Descriptor MemoryPool::make(size_t bytes, size_t reserved) {
  Descriptor memory = make_sealed_memory(kPage + round_to_pages(reserved) + round_to_pages(bytes));
  const Mapping header(memory, 0, sizeof(PoolHeader));
  static_cast<PoolHeader*>(header.data())->taken = round_to_pages(reserved);
  return memory;
}

MemoryPool::MemoryPool(Descriptor memory)
    : memory_(std::move(memory)),
      bytes_(sealed_memory_bytes(memory_)),
      header_(memory_, 0, sizeof(PoolHeader)) {}

size_t MemoryPool::take(size_t bytes) {
  auto& taken = static_cast<PoolHeader*>(header_.data())->taken;
  const size_t offset = kPage + taken.fetch_add(round_to_pages(bytes));
  if (offset > bytes_ || bytes > bytes_ - offset) {
    fail_to_share(fmt::format("no room for {} bytes more", bytes));
  }
  return offset;
}

Mapping MemoryPool::map(size_t offset, size_t bytes) const {
  if (offset < kPage || offset % kPage != 0 || offset > bytes_ || bytes > bytes_ - offset) {
    fail_to_share(
        fmt::format("{} bytes at {} lie outside the {} of this run", bytes, offset, bytes_));
  }
  return Mapping(memory_, offset, bytes);
}

Mapping MemoryPool::map_reserved(size_t bytes) const { return map(kPage, bytes); }

Mapping share_memory(const MemoryMeeting& meeting, size_t bytes) {
  if (meeting.pool != nullptr) {
    return share_from_pool(meeting, bytes);
  }
  return meeting.rank == 0 ? give_to_others(meeting, bytes) : receive_from_first(meeting, bytes);
}

}  // namespace moe::distributed
