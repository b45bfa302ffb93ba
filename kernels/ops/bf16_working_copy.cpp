// The copy hangs on the tensor itself, where LibTorch lets others keep what is theirs: it goes with
// the tensor, and no table of them is needed.

#include "kernels/ops/bf16_working_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace moe::kernels {

namespace {

using at::Tensor;

struct Copy final : c10::BackendMeta {
  Tensor values;
  int64_t version = -1;   // of the weight when it was copied
  bool is_given = false;  // its giver keeps it up to date

  // A tensor made of another with its own count of writes has no copy.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*ptr*/) const override {
    return {};
  }
};

Copy* copy_of(const Tensor& weight) {
  return dynamic_cast<Copy*>(weight.unsafeGetTensorImpl()->get_backend_meta());
}

}  // namespace

void keep_bf16_working_copy(const Tensor& weight) {
  TORCH_CHECK(weight.is_cuda() && weight.scalar_type() == at::kFloat, weight.toString());
  if (copy_of(weight) == nullptr) {
    weight.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Copy>());
  }
}

void set_bf16_working_copy(const Tensor& weight, const Tensor& values) {
  TORCH_CHECK(values.scalar_type() == at::kBFloat16 && values.sizes() == weight.sizes(),
              values.toString(), values.sizes(), " of a weight ", weight.sizes());
  const auto copy = c10::make_intrusive<Copy>();
  copy->values = values;
  copy->is_given = true;
  weight.unsafeGetTensorImpl()->set_backend_meta(copy);
}

Tensor weight_for_products(const Tensor& weight, at::ScalarType type) {
  Copy* copy = type == at::kBFloat16 ? copy_of(weight) : nullptr;
  if (copy == nullptr) {
    return weight;
  }
  if (!copy->is_given && copy->version != weight._version()) {
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
  const Copy* copy = copy_of(weight);
  return copy == nullptr ? Tensor() : copy->values;
}

Tensor gradient_to_add_to(const Tensor& weight) {
  if (copy_of(weight) == nullptr || !weight.is_leaf() || !weight.requires_grad()) {
    return {};
  }
  const Tensor& sum = weight.grad();
  return sum.defined() && sum.is_contiguous() && sum.scalar_type() == at::kFloat ? sum : Tensor();
}

void mark_bf16_working_copy_current(const Tensor& weight) {
  if (Copy* copy = copy_of(weight); copy != nullptr && copy->values.defined()) {
    copy->version = weight._version();
  }
}

}  // namespace moe::kernels
