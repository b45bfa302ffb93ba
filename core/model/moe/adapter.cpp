#include "core/model/moe/adapter.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/swiglu.h"

namespace moe::model {
namespace {

using at::Tensor;

// Returns grouped_linear(rows, weight), plus the adapter's product.
Tensor with_adapter(const Tensor& rows, const Tensor& weight, const Adapter& adapter,
                    const kernels::Segments& segments) {
  const Tensor product = kernels::grouped_linear(rows, weight, segments);
  if (!adapter.defined()) {
    return product;
  }
  const Tensor low_rank = kernels::grouped_linear(rows, adapter.a, segments);  // [R, r]
  return product + kernels::grouped_linear(low_rank, adapter.b, segments) * adapter.scale;
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
                      const Adapter& down_adapter, const kernels::Segments& segments) {
  if (!gate_up_adapter.defined() && !down_adapter.defined()) {
    return kernels::grouped_swiglu(rows, gate_up, down, segments);
  }
  const Tensor hidden = with_adapter(rows, gate_up.tensor, gate_up_adapter, segments);
  return with_adapter(kernels::swiglu(hidden), down.tensor, down_adapter, segments);
}

}  // namespace moe::model
