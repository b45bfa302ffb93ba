#pragma once
// The caching allocator of CPU tensors. A step of training allocates and frees the same large
// tensors again and again; a plain malloc returns their pages to the system each time and faults
// them in again, or keeps them in fragments. Here a freed block is cached and given to the next
// tensor of at most its size and no less than four fifths of it; where none fits, the pages of
// cached blocks are moved into a new block, so that none has to be cleared and faulted in again.
// Live and cached blocks together never exceed the peak of the live ones by more than a few
// percent, so that a run takes the memory that its plan says (core/train/loop/plan.h).

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace moe::kernels {

class CachingAllocator final : public c10::Allocator {
 public:
  struct Use {
    uint64_t live = 0;  // bytes of blocks that tensors use
    uint64_t most = 0;  // the peak of `live`, since the last release()
    uint64_t held = 0;  // bytes of cached blocks
  };

  ~CachingAllocator() override;

  // At least 64-byte aligned; nullptr of 0 bytes. std::bad_alloc when the system has no more.
  c10::DataPtr allocate(size_t bytes) override;
  // The deleter of raw_allocate(), by which LibTorch takes scratch memory for oneDNN.
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override;

  Use use() const;  // of large blocks; tensors below 64 KiB are malloc's

  // Gives all cached blocks back to the system, where what comes needs less than what was.
  void release();

 private:
  struct Room {
    size_t front, back;  // [front, back) of a block has no pages yet
    size_t size() const { return back - front; }
  };
  struct Block {
    CachingAllocator* owner;
    char* data;
    size_t bytes;
    std::vector<size_t> seams;  // where one mapping of the system may end and another begin

    void give_end(size_t begin, Block& to, size_t index);
    void give(Block& to, Room& room);
  };
  using FreeBlocks = std::multimap<size_t, Block>;  // by their bytes
  // Blocks of all allocators that tensors use. A DataPtr's context has to be its data
  // (c10::Allocator::raw_allocate()), so that it cannot hold the block.
  struct LiveBlocks {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;  // by their data
  };

  static void free_memory(void* data);
  static LiveBlocks& live_blocks();
  Block take(size_t bytes);
  void return_block(Block block);
  void cache_block(Block block);
  Block take_out(FreeBlocks::iterator which);
  FreeBlocks::iterator block_to_split(size_t bytes);
  void make_room(Block& block);

  mutable std::mutex mutex_;
  Use use_;
  FreeBlocks free_blocks_;
};

// Makes one the allocator of LibTorch's CPU tensors, for good; the same one when called again.
CachingAllocator& use_caching_allocator();

}  // namespace moe::kernels
