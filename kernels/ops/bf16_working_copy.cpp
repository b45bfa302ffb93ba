// The copy is stored in the backend metadata of the tensor and has its lifetime.

#include "kernels/ops/bf16_working_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace moe::kernels {

namespace {

using at::Tensor;

struct Copy final : c10::BackendMeta {
  Tensor values;
  int64_t version = -1;      // version of the weight when it was copied
  bool is_external = false;  // set_bf16_working_copy(): the caller keeps it up to date

  // Tensors with their own version counter do not share the copy.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*ptr*/) const override {
    return {};
  }
};

Copy* find_copy(const Tensor& weight) {
  return dynamic_cast<Copy*>(weight.unsafeGetTensorImpl()->get_backend_meta());
}

}  // namespace

void keep_bf16_working_copy(const Tensor& weight) {
  TORCH_CHECK(weight.scalar_type() == at::kFloat, weight.toString());
  if (find_copy(weight) == nullptr) {
    weight.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Copy>());
  }
}

void set_bf16_working_copy(const Tensor& weight, const Tensor& values) {
  TORCH_CHECK(values.scalar_type() == at::kBFloat16 && values.sizes() == weight.sizes(),
              values.toString(), values.sizes(), " of a weight ", weight.sizes());
  const auto copy = c10::make_intrusive<Copy>();
  copy->values = values;
  copy->is_external = true;
  weight.unsafeGetTensorImpl()->set_backend_meta(copy);
}

Tensor weight_for_products(const Tensor& weight, at::ScalarType type) {
  Copy* copy = type == at::kBFloat16 ? find_copy(weight) : nullptr;
  if (copy == nullptr) {
    return weight;
  }
  if (!copy->is_external && copy->version != weight._version()) {
    const at::NoGradGuard no_gradients;
    if (!copy->values.defined()) {
      copy->values = at::empty_like(weight, at::kBFloat16);
    }
    copy->values.copy_(weight);
    copy->version = weight._version();
  }
  return copy->values;
}

Tensor bf16_working_copy(const Tensor& weight) {
  const Copy* copy = find_copy(weight);
  return copy == nullptr ? Tensor() : copy->values;
}

Tensor gradient_to_add_to(const Tensor& weight) {
  if (find_copy(weight) == nullptr || !weight.is_leaf() || !weight.requires_grad()) {
    return {};
  }
  const Tensor& sum = weight.grad();
  return sum.defined() && sum.is_contiguous() && sum.scalar_type() == at::kFloat ? sum : Tensor();
}

void mark_bf16_working_copy_current(const Tensor& weight) {
  if (Copy* copy = find_copy(weight); copy != nullptr && copy->values.defined()) {
    copy->version = weight._version();
  }
}

}  // namespace moe::kernels
