#include "core/model/moe/adapter.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/swiglu.h"

namespace moe::model {

using at::Tensor;

namespace {

// Returns `product` plus the adapter's product. `segments`: rows per expert on the host, or ends on
// the device.
template <typename Segments>
Tensor with_adapter(const Tensor& product, const Tensor& rows, const Adapter& adapter,
                    const Segments& segments) {
  if (!adapter.defined()) {
    return product;
  }
  const Tensor low_rank = kernels::grouped_linear(rows, adapter.a, segments);  // [R, r]
  return product + kernels::grouped_linear(low_rank, adapter.b, segments) * adapter.scale;
}

template <typename Segments>
Tensor swiglu_with_adapters(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                            const Adapter& gate_up_adapter, const Adapter& down_adapter,
                            const Segments& segments) {
  const Tensor hidden = with_adapter(kernels::grouped_linear(rows, gate_up, segments), rows,
                                     gate_up_adapter, segments);
  const Tensor inner = kernels::swiglu(hidden);
  return with_adapter(kernels::grouped_linear(inner, down, segments), inner, down_adapter,
                      segments);
}

}  // namespace

Adapter make_adapter(const Tensor& weight, int64_t rank, double scale, uint64_t seed,
                     const ExpertRange& range) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<int64_t> a = weight.sizes().vec(), b = a;
  a[a.size() - 2] = rank;
  b[b.size() - 1] = rank;
  const int64_t local_experts = a.front();
  a.front() = range.experts > 0 ? range.experts : local_experts;
  const double bound = 1 / std::sqrt(static_cast<double>(weight.size(-1)));
  const Tensor random =
      at::empty(a).uniform_(-bound, bound, generator).narrow(0, range.first, local_experts).clone();
  return {random.to(weight.device()), at::zeros(b, weight.options()).detach(), scale};
}

Tensor merged_weight(const Tensor& weight, const Adapter& adapter) {
  return adapter.defined() ? weight + at::matmul(adapter.b, adapter.a) * adapter.scale : weight;
}

Tensor adapted_linear(const Tensor& x, const kernels::Weight& weight, const Tensor& bias,
                      const Adapter& adapter) {
  const Tensor y = kernels::linear(x, weight, bias);
  return adapter.defined()
             ? y + kernels::linear(kernels::linear(x, adapter.a), adapter.b) * adapter.scale
             : y;
}

Tensor adapted_swiglu(const Tensor& rows, const kernels::Weight& gate_up,
                      const kernels::Weight& down, const Adapter& gate_up_adapter,
                      const Adapter& down_adapter, const std::vector<int64_t>& rows_per_expert) {
  if (!gate_up_adapter.defined() && !down_adapter.defined()) {
    return kernels::grouped_swiglu(rows, gate_up, down, rows_per_expert);
  }
  return swiglu_with_adapters(rows, gate_up.tensor, down.tensor, gate_up_adapter, down_adapter,
                              rows_per_expert);
}

Tensor adapted_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const Adapter& gate_up_adapter, const Adapter& down_adapter,
                      const Tensor& ends) {
  if (!gate_up_adapter.defined() && !down_adapter.defined()) {
    return kernels::grouped_swiglu(rows, gate_up, down, ends);
  }
  return swiglu_with_adapters(rows, gate_up, down, gate_up_adapter, down_adapter, ends);
}

}  // namespace moe::model
