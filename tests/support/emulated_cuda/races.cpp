// Finds races independently of the order of threads: two warps of a block that access the same
// memory, at least one to write, without a barrier between them; two blocks of a launch that do;
// and shared memory that is read before the block has written it.
//
// kernels/cuda/*.cu are compiled with -fsanitize=thread: the compiler calls a function before each
// access. These functions are defined here in place of the thread sanitizer. For every two bytes
// (the smallest numbers that kernels write) a cell stores the last writer and the warps that have
// read since the last barrier. Atomics do not race with each other.
//
// Not found: races of lanes of one warp, and orders between blocks that atomics establish.

#include "races.h"

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "cuda_runtime_api.h"
#include "emulator.h"

namespace emulated {

namespace {

constexpr uintptr_t kCellBytes = 2, kPageBytes = 4096, kCells = kPageBytes / kCellBytes;
constexpr size_t kMostPages = 2048;  // 64 MiB of cells; beyond, what other blocks did is forgotten
constexpr int kSeveral = -1;

enum class Access { kRead, kWrite, kAtomic };

// Epochs count the barriers of all blocks of all launches.
struct Cell {
  uint32_t written = 0, read = 0;  // the epoch of the last; 0: never
  uint32_t readers = 0;            // a bit a warp, of the epoch `read`
  int16_t writer = 0;              // the warp, of the epoch `written`
  bool is_atomic = false;          // the last write
};

struct Page {
  Cell cells[kCells];
};

struct Cells {
  static constexpr size_t kNear = 256;  // pages that are found without the map
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  std::array<uintptr_t, kNear> near_numbers = {};
  std::array<Page*, kNear> near_pages = {};
  uint32_t epoch = 0, block_began = 0, launch_began = 0;

  Cell& at(uintptr_t address) {
    const uintptr_t number = address / kPageBytes;
    if (near_numbers[number % kNear] != number) {
      auto& page = pages[number];
      if (page == nullptr) {
        page = std::make_unique<Page>();
      }
      near_numbers[number % kNear] = number;
      near_pages[number % kNear] = page.get();
    }
    return near_pages[number % kNear]->cells[address % kPageBytes / kCellBytes];
  }

  void forget() {
    pages.clear();
    near_numbers = {};
  }
};

Cells& cells() {
  static Cells one;
  return one;
}

// Returns the error of an access to a cell, null if there is none.
const char* error_of(const Cell& cell, const Cells& all, Access access, int warp, bool in_block) {
  const bool both_atomic = access == Access::kAtomic && cell.is_atomic;
  const bool is_read = access == Access::kRead;
  if (cell.written == all.epoch && cell.writer != warp && !both_atomic) {
    return is_read ? "reads what another warp writes, with no barrier between"
                   : "writes what another warp writes, with no barrier between";
  }
  if (!is_read && cell.read == all.epoch && (cell.readers & ~(uint32_t{1} << warp)) != 0) {
    return "writes what another warp reads, with no barrier between";
  }
  if (in_block) {
    return access != Access::kWrite && cell.written < all.block_began
               ? "reads shared memory that the block has not written"
               : nullptr;
  }
  const auto by_other_block = [&](uint32_t epoch) {
    return epoch >= all.launch_began && epoch < all.block_began;
  };
  if (by_other_block(cell.written) && !both_atomic) {
    return is_read ? "reads what another block writes" : "writes what another block writes";
  }
  return !is_read && by_other_block(cell.read) ? "writes what another block reads" : nullptr;
}

void note(Cell& cell, const Cells& all, Access access, int warp) {
  if (access == Access::kRead) {
    cell.readers = (cell.read == all.epoch ? cell.readers : 0) | uint32_t{1} << warp;
    cell.read = all.epoch;
    return;
  }
  const bool also_others = cell.written == all.epoch && cell.writer != warp;
  cell.writer = static_cast<int16_t>(also_others ? kSeveral : warp);
  cell.written = all.epoch;
  cell.is_atomic = access == Access::kAtomic;
}

// Returns true if only this warp has accessed the cell since the last barrier, and no other block
// of this launch: no check is needed.
bool is_quiet(const Cell& cell, const Cells& all, int warp) {
  const bool was_written = cell.written >= all.launch_began;
  const bool was_read = cell.read >= all.launch_began;
  return (!was_written || (cell.written >= all.block_began &&
                           (cell.written != all.epoch || cell.writer == warp))) &&
         (!was_read || (cell.read >= all.block_began &&
                        (cell.read != all.epoch || cell.readers == uint32_t{1} << warp)));
}

void see(const void* address, size_t bytes, Access access) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (!is_watching || begin - reinterpret_cast<uintptr_t>(&here) < sizeof here ||
      begin - running_stack.begin < running_stack.bytes) {
    return;
  }
  Cells& all = cells();
  const int warp = static_cast<int>(here.thread.x / 32);
  const bool in_block = is_shared(address);
  for (uintptr_t at = begin / kCellBytes * kCellBytes; at < begin + bytes; at += kCellBytes) {
    Cell& cell = all.at(at);
    if (in_block || !is_quiet(cell, all, warp)) {
      const char* const error = error_of(cell, all, access, warp, in_block);
      if (error != nullptr) {
        stop(error);
      }
    }
    note(cell, all, access, warp);
  }
}

}  // namespace

void pass_moment(Moment moment) {
  Cells& all = cells();
  ++all.epoch;
  if (moment == Moment::kLaunch) {
    all.launch_began = all.epoch;
  }
  if (moment == Moment::kLaunch || moment == Moment::kBlock) {
    all.block_began = all.epoch;
    if (all.pages.size() > kMostPages) {
      all.forget();
    }
  }
}

void see_atomic(const void* address, size_t bytes) { see(address, bytes, Access::kAtomic); }

}  // namespace emulated

// Functions that the compiler calls.
using emulated::Access;
using emulated::see;
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*at*/) {}
void __tsan_read1(void* at) { see(at, 1, Access::kRead); }
void __tsan_read2(void* at) { see(at, 2, Access::kRead); }
void __tsan_read4(void* at) { see(at, 4, Access::kRead); }
void __tsan_read8(void* at) { see(at, 8, Access::kRead); }
void __tsan_read16(void* at) { see(at, 16, Access::kRead); }
void __tsan_write1(void* at) { see(at, 1, Access::kWrite); }
void __tsan_write2(void* at) { see(at, 2, Access::kWrite); }
void __tsan_write4(void* at) { see(at, 4, Access::kWrite); }
void __tsan_write8(void* at) { see(at, 8, Access::kWrite); }
void __tsan_write16(void* at) { see(at, 16, Access::kWrite); }
void __tsan_unaligned_read2(void* at) { see(at, 2, Access::kRead); }
void __tsan_unaligned_read4(void* at) { see(at, 4, Access::kRead); }
void __tsan_unaligned_read8(void* at) { see(at, 8, Access::kRead); }
void __tsan_unaligned_read16(void* at) { see(at, 16, Access::kRead); }
void __tsan_unaligned_write2(void* at) { see(at, 2, Access::kWrite); }
void __tsan_unaligned_write4(void* at) { see(at, 4, Access::kWrite); }
void __tsan_unaligned_write8(void* at) { see(at, 8, Access::kWrite); }
void __tsan_unaligned_write16(void* at) { see(at, 16, Access::kWrite); }
void __tsan_read_range(void* at, unsigned long bytes) { see(at, bytes, Access::kRead); }
void __tsan_write_range(void* at, unsigned long bytes) { see(at, bytes, Access::kWrite); }
}
