#include "kernels/cpu/caching_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace moe::kernels {

namespace {

constexpr size_t kMinBlockBytes = size_t{64} << 10;  // smaller tensors use malloc
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

// Blocks with more seams are not split again: a process may have 65530 mappings.
constexpr size_t kMaxSeams = 256;

size_t whole_huge_pages(size_t bytes) { return bytes / kHugePage * kHugePage; }

void* map_at(void* address, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (address == nullptr ? 0 : MAP_FIXED);
  void* data = mmap(address, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return data;
}

// Returns new pages; kHugePage bytes or more are aligned to kHugePage.
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
  madvise(data + before, bytes, MADV_HUGEPAGE);  // advice: fewer faults if the system supports it
  return data + before;
}

}  // namespace

void CachingAllocator::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, block] : free_blocks_) {
    munmap(block.data, block.bytes);
  }
  free_blocks_.clear();
  stats_.cached_bytes = 0;
  stats_.peak_bytes = stats_.live_bytes;
}

// Moves the end of this block, from `begin` on, to offset `index` of `to`.
void CachingAllocator::Block::move_end(size_t begin, Block& to, size_t index) {
  while (!seams.empty() && seams.back() >= bytes) {
    seams.pop_back();
  }
  for (size_t at = bytes; at > begin;) {  // one mapping at a time, from the end
    const size_t piece = seams.empty() ? begin : std::max(begin, seams.back());
    const size_t moved = at - piece;
    char *from = data + piece, *target = to.data + index + (piece - begin);
    if (mremap(from, moved, moved, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
      map_at(target, moved);  // new pages
      munmap(from, moved);
    }
    to.seams.push_back(index + (piece - begin));
    to.seams.push_back(index + (at - begin));
    while (!seams.empty() && seams.back() >= piece) {
      seams.pop_back();
    }
    at = piece;
  }
  bytes = begin;
}

// Moves pages from the end of this block to the empty range of `to`: huge pages to the front, where
// they stay aligned, the rest to the back.
void CachingAllocator::Block::give_pages(Block& to, EmptyRange& range) {
  const auto to_back = [&](size_t count) {
    if (count > 0) {
      range.back -= count;
      move_end(bytes - count, to, range.back);
    }
  };
  to_back(std::min(bytes - whole_huge_pages(bytes), range.size()));
  const size_t whole = std::min(whole_huge_pages(bytes), whole_huge_pages(range.size()));
  if (whole > 0) {
    move_end(bytes - whole, to, range.front);
    range.front += whole;
  }
  to_back(std::min(bytes, range.size()));
  std::sort(to.seams.begin(), to.seams.end());
  to.seams.erase(std::unique(to.seams.begin(), to.seams.end()), to.seams.end());
}

c10::DataPtr CachingAllocator::allocate(size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes < kMinBlockBytes) {
    // aligned_alloc requires a multiple of the alignment. NOLINTNEXTLINE: owned by the DataPtr
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr && bytes > 0) {
      throw std::bad_alloc();
    }
    return {data, data, &std::free, cpu};
  }
  Block block = take((bytes + 4095) / 4096 * 4096);
  void* data = block.data;
  LiveBlocks& live = live_blocks();
  const std::lock_guard lock(live.mutex);
  live.blocks.emplace(data, std::move(block));
  return {data, data, &free_memory, cpu};
}

CachingAllocator::Stats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// Frees a small or a large block.
void CachingAllocator::free_memory(void* data) {
  LiveBlocks& live = live_blocks();
  std::unique_lock lock(live.mutex);
  auto block = live.blocks.extract(data);
  lock.unlock();
  if (block.empty()) {
    std::free(data);  // NOLINT: from aligned_alloc
    return;
  }
  CachingAllocator& owner = *block.mapped().owner;
  const std::lock_guard owner_lock(owner.mutex_);
  owner.stats_.live_bytes -= block.mapped().bytes;
  owner.cache_block(std::move(block.mapped()));
}

CachingAllocator::LiveBlocks& CachingAllocator::live_blocks() {
  // Never destroyed: tensors in other statics may be freed later. NOLINTNEXTLINE
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
  stats_.live_bytes += block.bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  return block;
}

// Inserts the block before those of equal size, because the block freed last may be in the CPU
// cache.
void CachingAllocator::cache_block(Block block) {
  stats_.cached_bytes += block.bytes;
  free_blocks_.emplace_hint(free_blocks_.lower_bound(block.bytes), block.bytes, std::move(block));
}

CachingAllocator::Block CachingAllocator::take_out(FreeBlocks::iterator which) {
  Block block = std::move(which->second);
  free_blocks_.erase(which);
  stats_.cached_bytes -= block.bytes;
  return block;
}

// Moves pages of cached blocks to the new `block`, and returns pages that it cannot take to the
// system, until all blocks together are within the limit.
void CachingAllocator::make_room(Block& block) {
  const uint64_t peak = std::max(stats_.peak_bytes, stats_.live_bytes + block.bytes);
  const uint64_t limit = peak + peak / 16;
  EmptyRange range{0, block.bytes};
  while (!free_blocks_.empty() && stats_.live_bytes + stats_.cached_bytes + block.bytes > limit) {
    // Takes pages of a block of one to two times the range, else of the largest smaller block: new
    // blocks have few pieces, and large blocks are not split.
    auto next = free_blocks_.lower_bound(range.size());
    const bool is_close = next != free_blocks_.end() && next->first <= 2 * range.size();
    if (!is_close && next != free_blocks_.begin()) {
      --next;
    }
    Block old_block = take_out(next);
    if (old_block.seams.size() + block.seams.size() < kMaxSeams) {
      old_block.give_pages(block, range);
    }
    if (old_block.bytes > 0 &&
        stats_.live_bytes + stats_.cached_bytes + block.bytes + old_block.bytes <= limit) {
      cache_block(std::move(old_block));
    } else if (old_block.bytes > 0) {
      munmap(old_block.data, old_block.bytes);
    }
  }
}

CachingAllocator& use_caching_allocator() {
  // Never destroyed: tensors in other statics may be freed later. NOLINTNEXTLINE
  static CachingAllocator* const cache = [] {
    CachingAllocator* created = std::make_unique<CachingAllocator>().release();
    c10::SetCPUAllocator(created, /*priority=*/100);
    return created;
  }();
  return *cache;
}

}  // namespace moe::kernels
