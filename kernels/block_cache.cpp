#include "kernels/block_cache.h"

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

// A block may be this much larger than what is asked of it, and all blocks together than what
// tensors once needed.
size_t with_slack(size_t bytes) { return bytes + bytes / 16; }

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void* map_pages(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: fewer faults where the system takes it
  return data;
}

}  // namespace

BlockCache::~BlockCache() {
  for (const Block& block : waiting_) {
    munmap(block.data, block.bytes);
  }
}

c10::DataPtr BlockCache::allocate(size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes < kSmall) {
    // aligned_alloc wants a whole number of alignments
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr && bytes > 0) {
      throw std::bad_alloc();
    }
    return {data, data, &std::free, cpu};
  }
  auto block = std::make_unique<Block>(take(whole_pages(bytes)));
  void* data = block->data;
  return {data, block.release(), &drop, cpu};
}

void BlockCache::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

BlockCache::Use BlockCache::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void BlockCache::drop(void* block) {
  const std::unique_ptr<Block> owned(static_cast<Block*>(block));
  owned->cache->put_back(*owned);
}

BlockCache::Block BlockCache::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Block block{this, nullptr, bytes};
  const auto fit = by_size_.lower_bound(bytes);
  if (fit != by_size_.end() && fit->first <= with_slack(bytes)) {
    block = *fit->second;
    waiting_.erase(fit->second);
    by_size_.erase(fit);
    use_.held -= block.bytes;
  } else {
    release(bytes);
    block.data = map_pages(bytes);
  }
  use_.live += block.bytes;
  use_.most = std::max(use_.most, use_.live);
  return block;
}

void BlockCache::put_back(const Block& block) {
  const std::lock_guard lock(mutex_);
  use_.live -= block.bytes;
  use_.held += block.bytes;
  by_size_.emplace(block.bytes, waiting_.insert(waiting_.end(), block));
}

// Gives blocks back to the system until `wanted` bytes more do not pass what was needed before.
void BlockCache::release(uint64_t wanted) {
  const uint64_t limit = with_slack(std::max(use_.most, use_.live + wanted));
  while (!waiting_.empty() && use_.live + use_.held + wanted > limit) {
    const auto oldest = waiting_.begin();
    auto same_size = by_size_.equal_range(oldest->bytes);
    by_size_.erase(std::find_if(same_size.first, same_size.second, [&](const auto& entry) {
      return entry.second == oldest;
    }));
    use_.held -= oldest->bytes;
    munmap(oldest->data, oldest->bytes);
    waiting_.erase(oldest);
  }
}

BlockCache& use_block_cache() {
  // Never destroyed: tensors in other statics may be dropped after it would be.
  static BlockCache* const cache = [] {
    BlockCache* one = std::make_unique<BlockCache>().release();
    c10::SetCPUAllocator(one, /*priority=*/100);
    return one;
  }();
  return *cache;
}

}  // namespace moe::kernels
