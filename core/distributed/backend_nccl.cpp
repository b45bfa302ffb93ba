// NCCL backend, provided by the CUDA library (kernels/cuda/device.cpp). The error handling of c10d
// is on: after an error its watchdog thread throws, which ends the process (on_terminate(),
// launch.cpp).

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/distributed/process_group.h"
#include "kernels/ops/cuda_functions.h"

namespace moe::distributed {

// Timeout of NCCL for a collective. It exceeds the duration of evaluations and checkpoints, because
// a collective may wait for them. ProcessGroup enforces --comm-timeout, which excludes long
// operations.
constexpr std::chrono::hours kNcclTimeout{24};

c10::intrusive_ptr<c10d::Backend> make_nccl(const ProcessGroup& group,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, at::Device device) {
  const Member& first = group.members.front();
  if (std::all_of(group.members.begin(), group.members.end(), [&](const Member& member) {
        return member.machine == first.machine && member.address == first.address;
      })) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // else its sockets are open to the network
  }
  return kernels::cuda_functions().make_nccl(store, rank, size, kNcclTimeout, device);
}

}  // namespace moe::distributed
