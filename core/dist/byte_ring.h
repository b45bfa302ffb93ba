#pragma once
// Bytes from one process to another through memory that both have mapped: one writes, one reads,
// neither waits. What a peer writes into the counters is not trusted further than the ring.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moe::dist {

struct ByteRing {
  static constexpr uint64_t kBytes = uint64_t{1} << 20;

  // Take as many of `count` bytes as there is room for, or as there are; return how many.
  uint64_t push(const std::byte* from, uint64_t count) {
    const uint64_t at = written.load(std::memory_order_relaxed);
    const uint64_t room = kBytes - std::min(kBytes, at - read.load(std::memory_order_acquire));
    const uint64_t taken = std::min(count, room);
    const uint64_t first = std::min(taken, kBytes - at % kBytes);
    std::memcpy(data + at % kBytes, from, first);
    std::memcpy(data, from + first, taken - first);
    written.store(at + taken, std::memory_order_release);
    return taken;
  }
  uint64_t pop(std::byte* to, uint64_t count) {
    const uint64_t at = read.load(std::memory_order_relaxed);
    const uint64_t there = std::min(kBytes, written.load(std::memory_order_acquire) - at);
    const uint64_t taken = std::min(count, there);
    const uint64_t first = std::min(taken, kBytes - at % kBytes);
    std::memcpy(to, data + at % kBytes, first);
    std::memcpy(to + first, data, taken - first);
    read.store(at + taken, std::memory_order_release);
    return taken;
  }

  alignas(64) std::atomic<uint64_t> written;  // since the beginning
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::byte data[kBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace moe::dist
