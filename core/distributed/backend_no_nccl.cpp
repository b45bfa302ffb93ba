// Stands in for backend_nccl.cpp in builds without CUDA, where no device is CUDA's.

#include "core/distributed/backends.h"

namespace moe::distributed {

BackendPointer make_nccl(const Membership&, const BackendGroup&, at::Device) {
  throw std::logic_error("make_nccl: this build has no CUDA");
}

}  // namespace moe::distributed
