// NCCL, which the CUDA library provides (kernels/cuda/nccl.cpp). Its error handling is on: an error
// ends its watchdog thread, and with it the process (launch.cpp translates the message).

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "core/distributed/process_group.h"
#include "kernels/ops/cuda_functions.h"

namespace moe::distributed {

// Longer than any evaluation or checkpoint, during which a collective may be enqueued. The limit
// that users set is that of Monitor, which knows about long operations.
constexpr std::chrono::hours kNcclTimeout{24};

std::shared_ptr<c10d::Backend> make_nccl(const ProcessGroup& group, const BackendGroup& subset,
                                         at::Device device) {
  const Member& first = group.members.front();
  if (std::all_of(group.members.begin(), group.members.end(), [&](const Member& member) {
        return member.machine == first.machine && member.address == first.address;
      })) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // else its sockets are open to the network
  }
  const auto store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(group.store.c10d().get());
  auto backend = kernels::cuda_functions().make_nccl(
      c10::make_intrusive<c10d::PrefixStore>(subset.name, store), static_cast<int>(subset.rank),
      static_cast<int>(subset.size), kNcclTimeout, device);
  c10d::Backend* const pointer = backend.get();
  return {pointer, [held = std::move(backend)](c10d::Backend* /*pointer*/) {}};
}

}  // namespace moe::distributed
