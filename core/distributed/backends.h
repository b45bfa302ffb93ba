#pragma once
// The c10d backends by name; each lives in a file of its own. Included by sources that speak c10d.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/distributed/process_group.h"

namespace moe::distributed {

using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

// Who takes part in a backend.
struct BackendPlace {
  std::string name;  // before its keys in the store
  int64_t rank = 0, size = 1;
};

// All wait for the other ranks to come.
BackendPointer make_host(const Membership& membership, const BackendPlace& place);
BackendPointer make_gloo(const Membership& membership, const BackendPlace& place);
BackendPointer make_nccl(const Membership& membership, const BackendPlace& place,
                         at::Device device);

}  // namespace moe::distributed
