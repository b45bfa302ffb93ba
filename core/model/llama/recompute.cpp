#include "core/model/llama/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace moe::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment function) : segment(std::move(function)) {}
  Segment segment;
};

variable_list defined_tensors(const std::vector<Tensor>& tensors) {
  variable_list defined;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(defined),
               [](const Tensor& tensor) { return tensor.defined(); });
  return defined;
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  // `anchor` requires a gradient, so that weights get theirs even if x requires none. Sets
  // `is_defined` for each tensor of the segment.
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& /*anchor*/,
                               const c10::intrusive_ptr<SegmentHolder>& holder,
                               std::vector<bool>* is_defined) {
    context->save_for_backward({x});
    context->saved_data["segment"] = c10::IValue::make_capsule(holder);
    const std::vector<Tensor> out = holder->segment(x);
    for (const auto& tensor : out) {
      is_defined->push_back(tensor.defined());
    }
    return defined_tensors(out);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::AutoGradMode on(true);
    const auto holder = c10::static_intrusive_pointer_cast<SegmentHolder>(
        context->saved_data["segment"].toCapsule());
    const Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_(context->needs_input_grad(0));
    const variable_list out = defined_tensors(holder->segment(x));
    TORCH_CHECK(out.size() == gradients.size(), "the segment returned ", out.size(), " tensors");
    variable_list roots, root_gradients;
    for (size_t index = 0; index < out.size(); ++index) {
      if (out[index].requires_grad() && gradients[index].defined()) {
        roots.push_back(out[index]);
        root_gradients.push_back(gradients[index]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, root_gradients);
    }
    return {x.grad(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::vector<Tensor> recomputed(const Segment& segment, const Tensor& x) {
  const Tensor anchor = at::empty({0}, x.options()).requires_grad_(true);
  std::vector<bool> is_defined;
  const variable_list out =
      Recomputed::apply(x, anchor, c10::make_intrusive<SegmentHolder>(segment), &is_defined);
  std::vector<Tensor> all(is_defined.size());
  for (size_t index = 0, next = 0; index < all.size(); ++index) {
    if (is_defined[index]) {
      all[index] = out[next++];
    }
  }
  return all;
}

}  // namespace moe::model
