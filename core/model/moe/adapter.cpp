#include "core/model/moe/adapter.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace moe::model {

using at::Tensor;

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

}  // namespace moe::model
