// Gloo. LibTorch carries it but not its headers; those of libgloo-dev serve. They are of another
// version, so nothing of Gloo is called here: devices are passed through.

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/distributed/backends.h"
#include "core/distributed/c10d_store.h"

namespace moe::distributed {

using c10d::ProcessGroupGloo;

BackendPointer make_gloo(const Membership& membership, const BackendGroup& group) {
  const auto& store = dynamic_cast<const C10dStore&>(*membership.store).c10d();
  const auto options = ProcessGroupGloo::Options::create(
      std::chrono::duration_cast<std::chrono::milliseconds>(membership.timeout));
  options->threads = 1;  // operations come one after the other
  options->devices.push_back(
      membership.interface.empty()
          ? ProcessGroupGloo::createDeviceForHostname(
                membership.rendezvous.members()[membership.rank].address)
          : ProcessGroupGloo::createDeviceForInterface(membership.interface));
  return c10::make_intrusive<ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(group.name, store), static_cast<int>(group.rank),
      static_cast<int>(group.size), options);
}

}  // namespace moe::distributed
