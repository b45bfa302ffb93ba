#include "kernels/cpu/caching_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace moe::kernels {

namespace {

constexpr size_t kSmall = size_t{64} << 10;  // below: malloc, whose small bins do well
constexpr size_t kAlignment = 64;

// All blocks together may be this much larger than what tensors once needed.
size_t with_slack(size_t bytes) { return bytes + bytes / 16; }

// Pages move between blocks in pieces of this, which is what the system moves in one go.
constexpr size_t kHugePage = size_t{2} << 20;

// A block in more pieces than this is not taken apart again: a process may have 65530 of them.
constexpr size_t kMostSeams = 256;

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
size_t whole_huge_pages(size_t bytes) { return bytes / kHugePage * kHugePage; }

void* map_at(void* index, size_t bytes) {
  const int how = MAP_PRIVATE | MAP_ANONYMOUS | (index == nullptr ? 0 : MAP_FIXED);
  void* data = mmap(index, bytes, PROT_READ | PROT_WRITE, how, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return data;
}

// Large ones begin at a huge page.
char* map_pages(size_t bytes) {
  if (bytes < kHugePage) {
    return static_cast<char*>(map_at(nullptr, bytes));
  }
  char* data = static_cast<char*>(map_at(nullptr, bytes + kHugePage));
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(data) % kHugePage) % kHugePage;
  if (before > 0) {
    munmap(data, before);
  }
  munmap(data + before + bytes, kHugePage - before);
  madvise(data + before, bytes, MADV_HUGEPAGE);  // advice: fewer faults where the system takes it
  return data + before;
}

// Moves the pages at `from`, which are one mapping of the system, to `to`.
void move_pages(char* from, size_t bytes, char* to) {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
    map_at(to, bytes);  // new pages then, as if no block had been cached
    munmap(from, bytes);
  }
}

}  // namespace

CachingAllocator::~CachingAllocator() { release(); }

void CachingAllocator::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, block] : free_blocks_) {
    munmap(block.data, block.bytes);
  }
  free_blocks_.clear();
  use_.held = 0;
  use_.most = use_.live;
}

// Gives [begin, begin + count) of this block, its end, to `to` at `place`.
void CachingAllocator::Block::give_end(size_t begin, Block& to, size_t index) {
  while (!seams.empty() && seams.back() >= bytes) {
    seams.pop_back();
  }
  for (size_t at = bytes; at > begin;) {  // a piece at a time, from the end
    const size_t piece = seams.empty() ? begin : std::max(begin, seams.back());
    move_pages(data + piece, at - piece, to.data + index + (piece - begin));
    to.seams.push_back(index + (piece - begin));
    to.seams.push_back(index + (at - begin));
    while (!seams.empty() && seams.back() >= piece) {
      seams.pop_back();
    }
    at = piece;
  }
  bytes = begin;
}

// Gives from the end of this block what `to` has room for: whole huge pages to the front, where
// they stay whole, the rest to the back.
void CachingAllocator::Block::give(Block& to, Room& room) {
  const auto to_back = [&](size_t count) {
    if (count > 0) {
      room.back -= count;
      give_end(bytes - count, to, room.back);
    }
  };
  to_back(std::min(bytes - whole_huge_pages(bytes), room.size()));
  const size_t whole = std::min(whole_huge_pages(bytes), whole_huge_pages(room.size()));
  if (whole > 0) {
    give_end(bytes - whole, to, room.front);
    room.front += whole;
  }
  to_back(std::min(bytes, room.size()));
  std::sort(to.seams.begin(), to.seams.end());
  to.seams.erase(std::unique(to.seams.begin(), to.seams.end()), to.seams.end());
}

c10::DataPtr CachingAllocator::allocate(size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes < kSmall) {
    // aligned_alloc wants a whole number of alignments. NOLINTNEXTLINE: the DataPtr owns it
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr && bytes > 0) {
      throw std::bad_alloc();
    }
    return {data, data, &std::free, cpu};
  }
  Block block = take(whole_pages(bytes));
  void* data = block.data;
  LiveBlocks& live = live_blocks();
  const std::lock_guard lock(live.mutex);
  live.blocks.emplace(data, std::move(block));
  return {data, data, &free_memory, cpu};
}

void CachingAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

CachingAllocator::Use CachingAllocator::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

// Frees what allocate() returned, whichever way its size was allocated.
void CachingAllocator::free_memory(void* data) {
  LiveBlocks& live = live_blocks();
  std::unique_lock lock(live.mutex);
  auto block = live.blocks.extract(data);
  lock.unlock();
  if (block.empty()) {
    std::free(data);  // NOLINT: from aligned_alloc
    return;
  }
  block.mapped().owner->return_block(std::move(block.mapped()));
}

CachingAllocator::LiveBlocks& CachingAllocator::live_blocks() {
  // Never destroyed: tensors in other statics may be freed after it would be. NOLINTNEXTLINE
  static LiveBlocks* const live = std::make_unique<LiveBlocks>().release();
  return *live;
}

CachingAllocator::Block CachingAllocator::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Block block{this, nullptr, bytes, {}};
  const auto fit = free_blocks_.lower_bound(bytes);
  if (fit != free_blocks_.end() && fit->first <= bytes + bytes / 4) {
    block = take_out(fit);
  } else {
    block.data = map_pages(bytes);
    make_room(block);
  }
  use_.live += block.bytes;
  use_.most = std::max(use_.most, use_.live);
  return block;
}

void CachingAllocator::return_block(Block block) {
  const std::lock_guard lock(mutex_);
  use_.live -= block.bytes;
  cache_block(std::move(block));
}

// Before those of its size: what was freed last may still be in the processor's cache.
void CachingAllocator::cache_block(Block block) {
  use_.held += block.bytes;
  free_blocks_.emplace_hint(free_blocks_.lower_bound(block.bytes), block.bytes, std::move(block));
}

CachingAllocator::Block CachingAllocator::take_out(FreeBlocks::iterator which) {
  Block block = std::move(which->second);
  free_blocks_.erase(which);
  use_.held -= block.bytes;
  return block;
}

// A cached block to split for `bytes`: one that holds them without much left, else the largest that
// does not hold them, so that few pieces make a block and the large ones stay whole.
CachingAllocator::FreeBlocks::iterator CachingAllocator::block_to_split(size_t bytes) {
  const auto larger = free_blocks_.lower_bound(bytes);
  const bool is_close = larger != free_blocks_.end() && larger->first <= 2 * bytes;
  return is_close || larger == free_blocks_.begin() ? larger : std::prev(larger);
}

// Cached blocks give their pages to the new `block`, and what it has no room for to the system,
// until all blocks together are within the peak that was needed before.
void CachingAllocator::make_room(Block& block) {
  const uint64_t limit = with_slack(std::max(use_.most, use_.live + block.bytes));
  Room room{0, block.bytes};
  while (!free_blocks_.empty() && use_.live + use_.held + block.bytes > limit) {
    Block given = take_out(block_to_split(room.size()));
    if (given.seams.size() + block.seams.size() < kMostSeams) {
      given.give(block, room);
    }
    if (given.bytes == 0) {
      continue;
    }
    if (use_.live + use_.held + block.bytes + given.bytes <= limit) {
      cache_block(std::move(given));
    } else {
      munmap(given.data, given.bytes);
    }
  }
}

CachingAllocator& use_caching_allocator() {
  // Never destroyed: tensors in other statics may be freed after it would be. NOLINTNEXTLINE
  static CachingAllocator* const cache = [] {
    CachingAllocator* created = std::make_unique<CachingAllocator>().release();
    c10::SetCPUAllocator(created, /*priority=*/100);
    return created;
  }();
  return *cache;
}

}  // namespace moe::kernels
