#pragma once
// The c10d backends by name. Included by sources that use c10d.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/distributed/process_group.h"

namespace moe::distributed {

using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

// Who takes part in a backend.
struct BackendGroup {
  std::string name;  // before its keys in the store
  int64_t rank = 0, size = 1;
  // Called now and then while one waits for the others to connect; what it throws ends the wait.
  std::function<void()> look;
};

// All wait for the other ranks to connect.
BackendPointer make_shared_memory(const Membership& membership, const BackendGroup& group);
BackendPointer make_gloo(const Membership& membership, const BackendGroup& group);
BackendPointer make_nccl(const Membership& membership, const BackendGroup& group,
                         at::Device device);

}  // namespace moe::distributed
