#include "kernels/ops/host_copy.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace moe::kernels {

HostCopy::HostCopy(const at::Tensor& tensor) : host_(tensor) {
  if (tensor.is_cpu()) {
    return;
  }
  host_ = at::empty(tensor.sizes(),
                    at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(tensor.device().type());
  arrived_->record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

const at::Tensor& HostCopy::get() {
  if (arrived_) {
    arrived_->synchronize();
    arrived_.reset();
  }
  return host_;
}

}  // namespace moe::kernels
