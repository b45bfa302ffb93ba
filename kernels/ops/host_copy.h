#pragma once
// A tensor of a GPU on its way to the host, which may give the GPU more to do before it waits. The
// copy goes to page-locked memory, where alone it is asynchronous, and an event says when it is
// done: what was launched after it is not waited for.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace moe::kernels {

class HostCopy {
 public:
  // Behind what the current stream has to do up to now. A tensor of the host is there already.
  explicit HostCopy(const at::Tensor& tensor);

  // On the host, of the same shape; the first call waits.
  const at::Tensor& get();

 private:
  at::Tensor host_;
  std::optional<c10::Event> arrived_;  // empty once it has
};

}  // namespace moe::kernels
