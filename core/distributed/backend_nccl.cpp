// NCCL, in builds with CUDA (else backend_no_nccl.cpp). Its watchdog is told to leave the process
// alone: HealthMonitor finds who failed, and process_group.cpp aborts the communicator and throws.

#define USE_C10D_NCCL
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/distributed/backends.h"
#include "core/distributed/c10d_store.h"

namespace moe::distributed {

using c10d::ProcessGroupNCCL;

BackendPointer make_nccl(const Membership& membership, const BackendGroup& group,
                         at::Device device) {
  const auto& store = dynamic_cast<const C10dStore&>(*membership.store).c10d();
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);  // read by the constructor below
  if (are_on_one_host(membership.rendezvous.members())) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // else its sockets are open to the network
  }
  const auto options = ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(membership.timeout);
  const auto backend = c10::make_intrusive<ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>(group.name, store), static_cast<int>(group.rank),
      static_cast<int>(group.size), options);
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace moe::distributed
