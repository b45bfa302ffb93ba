#pragma once
// Where tensors on the CPU live. A step of training makes and drops the same large tensors again
// and again; a plain malloc hands their pages back to the system each time and faults them in
// again, or keeps them in pieces that fit nothing. Here a dropped block is kept and given to the
// next tensor of at most its size and no less than four fifths of it; where none fits, the pages of
// those that wait are moved into a new block, so that none has to be cleared and faulted in again.
// What is held never exceeds what tensors once needed together by more than a few percent: so a run
// takes the memory that it was foretold.

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace moe::kernels {

class BlockCache final : public c10::Allocator {
 public:
  struct Use {
    uint64_t live = 0;  // bytes of blocks that tensors have
    uint64_t most = 0;  // the most that `live` ever was
    uint64_t held = 0;  // bytes of blocks that wait
  };

  ~BlockCache() override;

  // At least 64-byte aligned; nullptr of 0 bytes. std::bad_alloc when the system has no more.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;

  Use use() const;  // of large blocks; tensors below 64 KiB are malloc's

 private:
  struct Room {
    size_t front, back;  // [front, back) of a block has no pages yet
    size_t size() const { return back - front; }
  };
  struct Block {
    BlockCache* cache;
    char* data;
    size_t bytes;
    std::vector<size_t> seams;  // where one mapping of the system may end and another begin

    void give_end(size_t begin, Block& to, size_t place);
    void give(Block& to, Room& room);
  };
  using Waiting = std::multimap<size_t, Block>;  // by their bytes

  static void drop(void* block);
  Block take(size_t bytes);
  void put_back(Block block);
  void keep(Block block);
  Block take_out(Waiting::iterator which);
  Waiting::iterator donor(size_t bytes);
  void make_room(Block& block);

  mutable std::mutex mutex_;
  Use use_;
  Waiting waiting_;
};

// Makes one the allocator of LibTorch's CPU tensors, for good; the same one when called again.
BlockCache& use_block_cache();

}  // namespace moe::kernels
