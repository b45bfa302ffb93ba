// NCCL, which the CUDA half makes (kernels/cuda/nccl.cpp). Its watchdog is told to leave the
// process alone: ours (watchdog.h) asks HealthMonitor who failed, aborts the communicators, and
// what failed is thrown.

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "core/distributed/backends.h"
#include "core/distributed/c10d_store.h"
#include "kernels/ops/cuda_functions.h"

namespace moe::distributed {

BackendPointer make_nccl(const Membership& membership, const BackendGroup& group,
                         at::Device device) {
  const auto& store = dynamic_cast<const C10dStore&>(*membership.store).c10d();
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);  // read when it is made
  if (are_on_one_host(membership.rendezvous.members())) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // else its sockets are open to the network
  }
  return kernels::cuda_functions().make_nccl(
      c10::make_intrusive<c10d::PrefixStore>(group.name, store), static_cast<int>(group.rank),
      static_cast<int>(group.size),
      std::chrono::duration_cast<std::chrono::milliseconds>(membership.timeout), device);
}

}  // namespace moe::distributed
