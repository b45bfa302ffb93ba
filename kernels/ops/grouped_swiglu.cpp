// One autograd node for all experts of a layer, with the rows per expert on the host or on the
// device.

#include "kernels/ops/grouped_swiglu.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/swiglu.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Around the activation in backward.
struct Inner {
  Tensor grad_hidden;  // [rows, 2F]
  Tensor activation;   // [rows, F]; undefined where `down` does not train, which costs nothing
};

// grad: of the activation, whose memory it gives away. `ends` as in swiglu_backward, or undefined.
Inner inner_of(const Tensor& grad, const Tensor& hidden, const Tensor& ends,
               AutogradContext* context) {
  if (!context->needs_input_grad(2)) {
    return {swiglu_backward(grad, hidden, ends), {}};
  }
  const Tensor activation = grad.contiguous();
  return {swiglu_backward_(activation, hidden, ends), activation};
}

struct GroupedSwiglu : torch::autograd::Function<GroupedSwiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& gate_up,
                        const Tensor& down, std::vector<int64_t> rows_per_expert) {
    RECORD_USER_SCOPE("experts");
    const int64_t used =
        std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
    TORCH_CHECK(used <= rows.size(0), used, " rows of ", rows.size(0));
    const Tensor up = weight_for_products(gate_up, rows.scalar_type());
    const Tensor back = weight_for_products(down, rows.scalar_type());
    const Tensor hidden = grouped_product(rows, up, true, used, rows_per_expert);
    const Tensor out =
        grouped_product(swiglu_forward(hidden), back, true, rows.size(0), rows_per_expert);
    context->save_for_backward({rows, gate_up, down, hidden, up, back});
    context->saved_data["rows_per_expert"] = std::move(rows_per_expert);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &gate_up = saved[1], &down = saved[2], &hidden = saved[3];
    const Tensor &up = saved[4], &back = saved[5];
    const auto rows_per_expert = context->saved_data["rows_per_expert"].toIntVector();
    const int64_t used = hidden.size(0);
    const Tensor grad_out = gradients[0].narrow(0, 0, used).contiguous();

    auto [grad_hidden, activation] = inner_of(
        grouped_product(grad_out, back, false, used, rows_per_expert), hidden, {}, context);
    const Tensor grad_down =
        activation.defined() ? grouped_weight_gradient(grad_out, activation, down, rows_per_expert)
                             : Tensor();
    activation.reset();  // the products that follow want the memory
    const Tensor grad_gate_up =
        context->needs_input_grad(1)
            ? grouped_weight_gradient(grad_hidden, rows, gate_up, rows_per_expert)
            : Tensor();
    const Tensor grad_rows = grouped_product(grad_hidden, up, false, rows.size(0), rows_per_expert);
    return {grad_rows, grad_gate_up, grad_down, Tensor()};
  }
};

struct GroupedSwigluOnDevice : torch::autograd::Function<GroupedSwigluOnDevice> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& gate_up,
                        const Tensor& down, const Tensor& ends) {
    const Tensor up = weight_operand(gate_up, rows.scalar_type());
    const Tensor back = weight_operand(down, rows.scalar_type());
    const Tensor hidden = grouped_product(rows, up, true, ends);
    context->save_for_backward({rows, gate_up, down, hidden, ends, up, back});
    return grouped_product(swiglu_forward(hidden, ends), back, true, ends);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &gate_up = saved[1], &down = saved[2], &hidden = saved[3];
    const Tensor &ends = saved[4], &up = saved[5], &back = saved[6];
    const Tensor grad_out = gradients[0].contiguous();
    auto [grad_hidden, activation] =
        inner_of(grouped_product(grad_out, back, false, ends), hidden, ends, context);
    const Tensor grad_down =
        activation.defined() ? grouped_weight_gradient(grad_out, activation, down, ends) : Tensor();
    activation.reset();  // the products that follow want the memory
    const Tensor grad_gate_up = context->needs_input_grad(1)
                                    ? grouped_weight_gradient(grad_hidden, rows, gate_up, ends)
                                    : Tensor();
    return {grouped_product(grad_hidden, up, false, ends), grad_gate_up, grad_down, Tensor()};
  }
};

void check_shapes(const Tensor& rows, const Tensor& gate_up, const Tensor& down, int64_t experts) {
  TORCH_CHECK(rows.dim() == 2 && gate_up.dim() == 3 && down.dim() == 3);
  TORCH_CHECK(gate_up.size(2) == rows.size(1) && down.size(1) == rows.size(1) &&
                  down.size(2) * 2 == gate_up.size(1) && gate_up.size(0) == down.size(0) &&
                  experts == down.size(0),
              "rows ", rows.sizes(), ", gate_up ", gate_up.sizes(), ", down ", down.sizes(),
              ", rows of ", experts, " experts");
}

}  // namespace

Tensor grouped_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const std::vector<int64_t>& rows_per_expert, GroupedGemm gemm) {
  check_shapes(rows, gate_up, down, static_cast<int64_t>(rows_per_expert.size()));
  if (!takes_grouped_mm(rows, gemm)) {
    return GroupedSwiglu::apply(rows, gate_up, down, rows_per_expert);
  }
  const int64_t used = std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
  TORCH_CHECK(used <= rows.size(0), used, " rows of ", rows.size(0));
  return with_zero_rows(GroupedSwigluOnDevice::apply(rows.narrow(0, 0, used), gate_up, down,
                                                     ends_of(rows_per_expert, rows.device())),
                        rows.size(0));
}

Tensor grouped_swiglu(const Tensor& rows, const Weight& gate_up, const Weight& down,
                      const std::vector<int64_t>& rows_per_expert, GroupedGemm gemm) {
  if (gate_up.is_one_tensor() && down.is_one_tensor()) {
    return grouped_swiglu(rows, gate_up.tensor, down.tensor, rows_per_expert, gemm);
  }
  RECORD_USER_SCOPE("experts");
  const int64_t used = std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
  const auto experts = static_cast<int64_t>(rows_per_expert.size());
  TORCH_CHECK(!(at::GradMode::is_enabled() && rows.requires_grad()) && rows.is_cpu() &&
                  used <= rows.size(0) && gate_up.count() == experts && down.count() == experts &&
                  gate_up.inner() == rows.size(1) && down.outer() == rows.size(1) &&
                  down.inner() * 2 == gate_up.outer(),
              "rows ", rows.sizes(), ", used ", used, ", ", gate_up.count(), " gate_up [",
              gate_up.outer(), ", ", gate_up.inner(), "] and ", down.count(), " down apart");
  const Tensor hidden = grouped_product(rows, gate_up, used, rows_per_expert);
  return grouped_product(swiglu_forward(hidden), down, rows.size(0), rows_per_expert);
}

Tensor grouped_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const Tensor& ends, GroupedGemm gemm) {
  check_shapes(rows, gate_up, down, ends.numel());
  TORCH_CHECK(ends.scalar_type() == at::kInt && ends.device() == rows.device());
  if (gemm == GroupedGemm::kLoop) {
    return GroupedSwiglu::apply(rows, gate_up, down, rows_per_expert_of(ends));
  }
  return GroupedSwigluOnDevice::apply(rows, gate_up, down, ends);
}

}  // namespace moe::kernels
