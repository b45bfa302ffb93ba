#pragma once
// Ranks as processes, over LibTorch's c10d: Gloo on CPU, shared memory where all are of one
// machine, NCCL on CUDA, whose operations a watchdog waits for and not the caller. On CPU, sums are
// taken in rank order, as the ranks of threads.h do: the same bits. c10d's headers stay in the
// sources.

#include <memory>
#include <optional>

#include "core/distributed/comm.h"
#include "core/distributed/health_monitor.h"
#include "core/distributed/shared_memory.h"

namespace moe::distributed {

class Watchdog;

// How this process takes part.
struct Membership {
  Membership(const std::shared_ptr<Store>& its_store, int64_t its_rank, int64_t its_size,
             Seconds its_timeout)
      : store(its_store),
        rendezvous(its_store, its_rank, its_size),
        rank(its_rank),
        size(its_size),
        timeout(its_timeout) {}

  // Rendezvous::check_in, and from then on this process's heartbeats.
  void check_in(const Member& member, const std::string& version);

  std::shared_ptr<Store> store;
  Rendezvous rendezvous;
  std::optional<HealthMonitor> monitor;  // after check_in
  int64_t rank, size;
  Seconds timeout;
  std::string interface;             // of Gloo; "" = by the member's address
  std::shared_ptr<MemoryPool> pool;  // for memory in common; null where the launcher left none
  int64_t store_rank = -1;           // who serves the store; -1: the launcher
  // Backends whose operations will never end; they go with the process.
  std::vector<std::shared_ptr<void>> abandoned;
  std::shared_ptr<Watchdog> watchdog;  // of operations of a GPU; of the first Comm there. Last
};

// A Comm of all members, after check_in. All make it at the same time.
std::unique_ptr<Comm> process_comm(std::shared_ptr<Membership> membership, at::Device device);

// The failure of an operation that nobody had to wait for, once all of its Comms are gone; looks
// for none any more. Null where all were over.
std::exception_ptr unseen_failure(Membership& membership);

}  // namespace moe::distributed
