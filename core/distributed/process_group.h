#pragma once
// Ranks as processes, over LibTorch's c10d: Gloo on CPU, shared memory where all are of one
// machine, NCCL on CUDA. On CPU, sums are taken in rank order, as the ranks of threads.h do: the
// same bits. c10d's headers stay in the sources.

#include <memory>

#include "core/distributed/comm.h"
#include "core/distributed/roll_call.h"
#include "core/distributed/shared_memory.h"

namespace moe::distributed {

// How this process takes part.
struct Membership {
  Membership(const std::shared_ptr<Store>& its_store, int64_t its_rank, int64_t its_size,
             Seconds its_timeout)
      : store(its_store),
        roll(its_store, its_rank, its_size),
        rank(its_rank),
        size(its_size),
        timeout(its_timeout) {}

  std::shared_ptr<Store> store;
  RollCall roll;  // after check_in
  int64_t rank, size;
  Seconds timeout;
  std::string interface;             // of Gloo; "" = by the member's address
  std::shared_ptr<MemoryPool> pool;  // for memory in common; null where the launcher left none
  int64_t store_rank = -1;           // who serves the store; -1: the launcher
  // Backends whose operations will never end; they go with the process.
  std::vector<std::shared_ptr<void>> abandoned;

  // As the roll call has it; also when the store is gone with the rank that served it.
  Verdict who_broke_off(const std::string& error, const std::vector<int64_t>& among);
  Verdict who_lost_the_store(const char* how) const;
};

// A Comm of all members. All make it at the same time.
std::unique_ptr<Comm> process_comm(std::shared_ptr<Membership> membership, at::Device device);

}  // namespace moe::distributed
