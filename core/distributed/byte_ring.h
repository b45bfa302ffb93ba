#pragma once
// Bytes from one process to another through memory that both have mapped: one writes, one reads,
// neither waits. What a peer writes into the counters is not trusted further than the ring.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moe::distributed {

// How many bytes a ring between two of `ranks` holds: a power of two. All of them together, one
// from each to each, stay below 256 MiB up to 128 ranks.
inline uint64_t ring_capacity(int64_t ranks) {
  constexpr uint64_t kAll = uint64_t{256} << 20, kLeast = 16 << 10, kMost = 1 << 20;
  const auto pairs = static_cast<uint64_t>(ranks * ranks);
  return std::bit_floor(std::clamp(kAll / pairs, kLeast, kMost));
}

// A view of memory that holds the ring. Zeros are an empty one.
class ByteRing {
 public:
  // `memory`: bytes_for(capacity), at a multiple of 64; `capacity` is a power of two.
  ByteRing(std::byte* memory, uint64_t capacity)
      : counters_(reinterpret_cast<Counters*>(memory)),
        data_(memory + sizeof(Counters)),
        capacity_(capacity) {}

  static uint64_t bytes_for(uint64_t capacity) { return sizeof(Counters) + capacity; }

  // Take as many of `count` bytes as there is room for, or as there are; return how many.
  uint64_t push(const std::byte* from, uint64_t count) {
    const uint64_t end = counters_->written.load(std::memory_order_relaxed);
    const uint64_t used = end - counters_->read.load(std::memory_order_acquire);
    const uint64_t taken = std::min(count, capacity_ - std::min(capacity_, used));
    const uint64_t start = end & (capacity_ - 1), first = std::min(taken, capacity_ - start);
    std::memcpy(data_ + start, from, first);
    std::memcpy(data_, from + first, taken - first);
    counters_->written.store(end + taken, std::memory_order_release);
    return taken;
  }
  uint64_t pop(std::byte* to, uint64_t count) {
    const uint64_t begin = counters_->read.load(std::memory_order_relaxed);
    const uint64_t held = counters_->written.load(std::memory_order_acquire) - begin;
    const uint64_t taken = std::min(count, std::min(capacity_, held));
    const uint64_t start = begin & (capacity_ - 1), first = std::min(taken, capacity_ - start);
    std::memcpy(to, data_ + start, first);
    std::memcpy(to + first, data_, taken - first);
    counters_->read.store(begin + taken, std::memory_order_release);
    return taken;
  }

 private:
  struct Counters {
    alignas(64) std::atomic<uint64_t> written;  // since the beginning
    alignas(64) std::atomic<uint64_t> read;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  Counters* counters_;
  std::byte* data_;
  uint64_t capacity_;
};

// A ring from each of `ranks` to each.
inline uint64_t all_rings_bytes(int64_t ranks) {
  return static_cast<uint64_t>(ranks * ranks) * ByteRing::bytes_for(ring_capacity(ranks));
}

}  // namespace moe::distributed
