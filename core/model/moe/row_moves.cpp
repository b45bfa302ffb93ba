#include "core/model/moe/row_moves.h"

#include <torch/csrc/autograd/custom_function.h>

namespace moe::model {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor pick(const Tensor& rows, const Tensor& index) { return rows.index_select(0, index); }

Tensor place(const Tensor& rows, const Tensor& index, int64_t size) {
  Tensor out = at::zeros({size, rows.size(1)}, rows.options());
  return out.index_copy_(0, index, rows);
}

struct Picked : torch::autograd::Function<Picked> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& index) {
    context->save_for_backward({index});
    context->saved_data["size"] = rows.size(0);
    return pick(rows, index);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const int64_t size = context->saved_data["size"].toInt();
    return {place(gradients[0], context->get_saved_variables()[0], size), Tensor()};
  }
};

struct Placed : torch::autograd::Function<Placed> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& index,
                        int64_t size) {
    context->save_for_backward({index});
    return place(rows, index, size);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {pick(gradients[0], context->get_saved_variables()[0]), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor picked(const Tensor& rows, const Tensor& index) { return Picked::apply(rows, index); }

Tensor placed(const Tensor& rows, const Tensor& index, int64_t size) {
  return Placed::apply(rows, index, size);
}

}  // namespace moe::model
