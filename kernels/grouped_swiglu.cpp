// One autograd node for all experts of a layer: weight gradients are written in place into one
// tensor per layer, never zero-filled whole and never stacked from pieces, which is where a node
// per expert spends 40 % of its time.

#include "kernels/grouped_swiglu.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "kernels/swiglu.h"

namespace moe::kernels {

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls each(expert, first row, number of rows) for the experts that have rows.
template <typename Each>
void for_each_expert(const std::vector<int64_t>& rows_per_expert, Each each) {
  int64_t first = 0;
  for (size_t expert = 0; expert < rows_per_expert.size(); ++expert) {
    const int64_t count = rows_per_expert[expert];
    if (count > 0) {
      each(static_cast<int64_t>(expert), first, count);
    }
    first += count;
  }
}

// out[e's rows] = in[e's rows] * weights[e]^T (transposed) or * weights[e].
void grouped_product(Tensor out,
                     const Tensor& in,
                     const Tensor& weights,
                     bool transposed,
                     const std::vector<int64_t>& rows_per_expert) {
  for_each_expert(rows_per_expert, [&](int64_t expert, int64_t first, int64_t count) {
    Tensor target = out.narrow(0, first, count);
    const Tensor weight = weights[expert];
    at::mm_out(target, in.narrow(0, first, count), transposed ? weight.t() : weight);
  });
}

// [E, M, N]: for each expert left^T * right over its rows; 0 where it has none.
Tensor grouped_weight_gradient(const Tensor& left,
                               const Tensor& right,
                               const Tensor& weights,
                               const std::vector<int64_t>& rows_per_expert) {
  Tensor gradient = at::empty(weights.sizes(), weights.options());
  for (size_t expert = 0; expert < rows_per_expert.size(); ++expert) {
    if (rows_per_expert[expert] == 0) {
      gradient[static_cast<int64_t>(expert)].zero_();
    }
  }
  for_each_expert(rows_per_expert, [&](int64_t expert, int64_t first, int64_t count) {
    Tensor target = gradient[expert];
    at::mm_out(target, left.narrow(0, first, count).t(), right.narrow(0, first, count));
  });
  return gradient;
}

struct GroupedSwiglu : torch::autograd::Function<GroupedSwiglu> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& rows,
                        const Tensor& gate_up,
                        const Tensor& down,
                        std::vector<int64_t> rows_per_expert) {
    const int64_t used =
        std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
    TORCH_CHECK(used <= rows.size(0), used, " rows of ", rows.size(0));
    Tensor hidden = at::empty({used, gate_up.size(1)}, rows.options());
    grouped_product(hidden, rows, gate_up, true, rows_per_expert);
    Tensor out = at::empty(rows.sizes(), rows.options());
    out.narrow(0, used, rows.size(0) - used).zero_();
    grouped_product(out, swiglu_forward(hidden), down, true, rows_per_expert);
    context->save_for_backward({rows, gate_up, down, hidden});
    context->saved_data["rows_per_expert"] = std::move(rows_per_expert);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &gate_up = saved[1], &down = saved[2], &hidden = saved[3];
    const auto rows_per_expert = context->saved_data["rows_per_expert"].toIntVector();
    const int64_t used = hidden.size(0);
    const Tensor grad_out = gradients[0].narrow(0, 0, used).contiguous();

    const Tensor grad_down =  // weights that do not train cost nothing
        context->needs_input_grad(2)
            ? grouped_weight_gradient(grad_out, swiglu_forward(hidden), down, rows_per_expert)
            : Tensor();
    Tensor grad_activation = at::empty({used, down.size(2)}, rows.options());
    grouped_product(grad_activation, grad_out, down, false, rows_per_expert);
    const Tensor grad_hidden = swiglu_backward(grad_activation, hidden);

    const Tensor grad_gate_up =
        context->needs_input_grad(1)
            ? grouped_weight_gradient(grad_hidden, rows, gate_up, rows_per_expert)
            : Tensor();
    Tensor grad_rows = at::empty(rows.sizes(), rows.options());
    grad_rows.narrow(0, used, rows.size(0) - used).zero_();
    grouped_product(grad_rows, grad_hidden, gate_up, false, rows_per_expert);
    return {grad_rows, grad_gate_up, grad_down, Tensor()};
  }
};

}  // namespace

Tensor grouped_swiglu(const Tensor& rows,
                      const Tensor& gate_up,
                      const Tensor& down,
                      const std::vector<int64_t>& rows_per_expert) {
  TORCH_CHECK(rows.dim() == 2 && gate_up.dim() == 3 && down.dim() == 3);
  TORCH_CHECK(gate_up.size(2) == rows.size(1) && down.size(1) == rows.size(1) &&
                  down.size(2) * 2 == gate_up.size(1) && gate_up.size(0) == down.size(0) &&
                  static_cast<int64_t>(rows_per_expert.size()) == down.size(0),
              "rows ",
              rows.sizes(),
              ", gate_up ",
              gate_up.sizes(),
              ", down ",
              down.sizes(),
              ", loads of ",
              rows_per_expert.size(),
              " experts");
  return GroupedSwiglu::apply(rows, gate_up, down, rows_per_expert);
}

}  // namespace moe::kernels
