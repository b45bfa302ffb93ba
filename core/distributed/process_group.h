#pragma once
// Ranks as processes, over LibTorch's c10d: Gloo on CPUs, NCCL on GPUs. c10d's headers stay in the
// sources.

#include <memory>
#include <vector>

#include "core/distributed/monitor.h"

namespace c10d {
class Backend;
}

namespace moe::distributed {

// This process in a run, after join().
struct ProcessGroup {
  ProcessGroup(Store its_store, int64_t its_rank, std::vector<Member> its_members,
               Seconds its_timeout, int64_t store_rank = -1,
               std::function<void(const RankFailed&)> on_deadline = nullptr)
      : store(std::move(its_store)),
        rank(its_rank),
        members(std::move(its_members)),
        timeout(its_timeout),
        monitor(store.connect_again(), rank, members, timeout, store_rank, std::move(on_deadline)) {
  }

  Store store;
  int64_t rank;
  std::vector<Member> members;  // by rank
  Seconds timeout;
  std::string interface;  // for Gloo; "": the one with the member's address
  Monitor monitor;
};

// Returns a Comm of all ranks. Collective. The group outlives it.
std::unique_ptr<Comm> make_process_comm(ProcessGroup& group, at::Device device);

// A subset of the ranks, for a c10d backend.
struct BackendGroup {
  std::string name;  // prefix of its keys in the store
  int64_t rank = 0, size = 1;
};

// Blocks until the other ranks have connected. Defined in backend_nccl.cpp, which a test replaces.
std::shared_ptr<c10d::Backend> make_nccl(const ProcessGroup& group, const BackendGroup& subset,
                                         at::Device device);

}  // namespace moe::distributed
