#pragma once
// Caching allocator for CPU tensors. malloc returns the pages of large tensors to the system and
// faults them in again in each training step, or fragments memory. Here a freed block is cached and
// reused for the next tensor of 80 to 100 % of its size. If no block fits, pages of cached blocks
// are moved into a new block. Live and cached blocks together exceed the peak of the live ones by
// at most 1/16, so that a run stays within its memory plan (core/train/loop/plan.h).

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace moe::kernels {

// Thread-safe.
class CachingAllocator final : public c10::Allocator {
 public:
  struct Stats {
    uint64_t live_bytes = 0;    // of blocks in use
    uint64_t peak_bytes = 0;    // maximum of live_bytes since the last release()
    uint64_t cached_bytes = 0;  // of cached blocks
  };

  ~CachingAllocator() override { release(); }

  // Returns memory with 64-byte alignment, nullptr for 0 bytes. Throws std::bad_alloc if the system
  // has no more.
  c10::DataPtr allocate(size_t bytes) override;
  // The deleter of raw_allocate(), with which LibTorch allocates scratch memory for oneDNN.
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  Stats stats() const;  // of large blocks; tensors below 64 KiB use malloc

  // Returns all cached blocks to the system.
  void release();

 private:
  struct EmptyRange {  // [front, back) of a block, which has no pages yet
    size_t front, back;
    size_t size() const { return back - front; }
  };
  struct Block {
    CachingAllocator* owner;
    char* data;
    size_t bytes;
    std::vector<size_t> seams;  // offsets at which a mapping of the system may end

    void move_end(size_t begin, Block& to, size_t index);
    void give_pages(Block& to, EmptyRange& range);
  };
  using FreeBlocks = std::multimap<size_t, Block>;  // by their bytes
  // Live blocks of all allocators. The context of a DataPtr must be its data
  // (c10::Allocator::raw_allocate()), so it cannot hold the block.
  struct LiveBlocks {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;  // by their data
  };

  static void free_memory(void* data);
  static LiveBlocks& live_blocks();
  Block take(size_t bytes);
  void cache_block(Block block);
  Block take_out(FreeBlocks::iterator which);
  void make_room(Block& block);

  mutable std::mutex mutex_;
  Stats stats_;
  FreeBlocks free_blocks_;
};

// Makes a global CachingAllocator the allocator of LibTorch's CPU tensors and returns it.
CachingAllocator& use_caching_allocator();

}  // namespace moe::kernels
