// One autograd node for all experts of a layer, with the rows per expert on the host or on the
// device.

#include "kernels/ops/grouped_swiglu.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/cpu/skinny_gemm.h"
#include "kernels/cpu/swiglu_product.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/host_copy.h"
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
    RECORD_USER_SCOPE("experts");
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
    const bool trains = context->needs_input_grad(1) || context->needs_input_grad(2);
    std::optional<HostCopy> counts;
    if (trains && rows.scalar_type() == at::kBFloat16 && prefers_gradients_by_expert(gate_up)) {
      counts.emplace(ends);
    }
    const Tensor grad_out = gradients[0].contiguous();
    auto [grad_hidden, activation] =
        inner_of(grouped_product(grad_out, back, false, ends), hidden, ends, context);
    // Before the weights' gradients, so that the GPU has work while the host waits for the counts.
    const Tensor grad_rows = grouped_product(grad_hidden, up, false, ends);
    const auto weight_gradient = [&](const Tensor& left, const Tensor& right,
                                     const Tensor& weight) {
      return counts
                 ? grouped_weight_gradient(left, right, weight, rows_per_expert_of(counts->get()))
                 : grouped_weight_gradient(left, right, weight, ends);
    };
    const Tensor grad_down =
        activation.defined() ? weight_gradient(grad_out, activation, down) : Tensor();
    activation.reset();  // the products that follow want the memory
    const Tensor grad_gate_up =
        context->needs_input_grad(1) ? weight_gradient(grad_hidden, rows, gate_up) : Tensor();
    return {grad_rows, grad_gate_up, grad_down, Tensor()};
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

// Rows [outer, inner] of blocks as columns of an operand in `type`.
std::vector<ColumnBlock> columns_of_rows(const RowBlocks& rows, int64_t begin, int64_t end,
                                         at::ScalarType type) {
  std::vector<ColumnBlock> columns;
  int64_t first = 0;
  for (const Tensor& block : rows) {
    const int64_t low = std::max(begin - first, int64_t{0});
    const int64_t high = std::min(end - first, block.size(0));
    if (low < high) {
      columns.push_back({view_of(block.narrow(0, low, high - low), type).transposed(), high - low});
    }
    first += block.size(0);
  }
  return columns;
}

// No deeper than what the caches hold beside gate and up.
bool fits_cache(int64_t inner) { return inner > 0 && inner <= 2 * kGemmDepth; }

// Whether gate and up of an expert may meet as they are multiplied: of enough rows for a packed
// product, all of one dtype.
bool meets_in_cache(const Tensor& rows, int64_t count, const RowBlocks& gate_up) {
  const auto dtype = gate_up.front().scalar_type();
  return count > kMostSkinnyRows && fits_cache(rows.size(1)) && rows.stride(1) == 1 &&
         (rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kBFloat16) &&
         !(rows.scalar_type() == at::kBFloat16 && dtype == at::kHalf) &&
         std::all_of(gate_up.begin(), gate_up.end(), [&](const Tensor& block) {
           return block.scalar_type() == dtype && block.stride(1) == 1;
         });
}

// silu(gate) * up [used, F] of every expert's rows.
Tensor activated(const Tensor& rows, const Weight& gate_up, int64_t used,
                 const std::vector<int64_t>& rows_per_expert) {
  const int64_t width = gate_up.outer() / 2, inner = rows.size(1);
  const auto type = rows.scalar_type();
  if (rows_per_expert.size() == 1 && !meets_in_cache(rows, used, gate_up.matrix(0))) {
    Tensor hidden = at::empty({used, 2 * width}, rows.options());
    weight_product_out(hidden, {rows.narrow(0, 0, used), type}, gate_up.matrix(0));
    return swiglu_forward(hidden);
  }
  Tensor out = at::empty({used, width}, rows.options());
  int64_t first = 0;
  for (size_t expert = 0; expert < rows_per_expert.size(); ++expert) {
    const int64_t count = rows_per_expert[expert];
    const RowBlocks matrix = gate_up.matrix(static_cast<int64_t>(expert));
    const Tensor own = rows.narrow(0, first, count);
    if (meets_in_cache(rows, count, matrix)) {
      swiglu_product_cpu({view_of(own, type), columns_of_rows(matrix, 0, width, type),
                          columns_of_rows(matrix, width, 2 * width, type),
                          out.narrow(0, first, count).data_ptr(), count, inner, width,
                          type == at::kBFloat16});
    } else if (count > 0) {
      Tensor hidden = at::empty({count, 2 * width}, rows.options());
      weight_product_out(hidden, {own, type}, matrix);
      out.narrow(0, first, count).copy_(swiglu_forward(hidden));
    }
    first += count;
  }
  return out;
}

}  // namespace

int64_t numbers_between(int64_t inner, int64_t width) {
  return fits_cache(inner) ? width : 3 * width;
}

Tensor grouped_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const std::vector<int64_t>& rows_per_expert) {
  check_shapes(rows, gate_up, down, static_cast<int64_t>(rows_per_expert.size()));
  return GroupedSwiglu::apply(rows, gate_up, down, rows_per_expert);
}

Tensor grouped_swiglu(const Tensor& rows, const Weight& gate_up, const Weight& down,
                      const std::vector<int64_t>& rows_per_expert) {
  if (gate_up.is_one_tensor() && down.is_one_tensor()) {
    return grouped_swiglu(rows, gate_up.tensor, down.tensor, rows_per_expert);
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
  return grouped_product(activated(rows, gate_up, used, rows_per_expert), down, rows.size(0),
                         rows_per_expert);
}

void add_swiglu(Tensor& sum, const Tensor& rows, const Weight& gate_up, const Weight& down) {
  RECORD_USER_SCOPE("experts");
  TORCH_CHECK(!at::GradMode::is_enabled() && rows.is_cpu() && gate_up.count() == 1 &&
                  gate_up.inner() == rows.size(1) && down.inner() * 2 == gate_up.outer(),
              "rows ", rows.sizes(), ", gate_up [", gate_up.outer(), ", ", gate_up.inner(), "]");
  add_linear(sum, activated(rows, gate_up, rows.size(0), {rows.size(0)}), down);
}

Tensor grouped_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const Tensor& ends) {
  check_shapes(rows, gate_up, down, ends.numel());
  TORCH_CHECK(ends.scalar_type() == at::kInt && ends.device() == rows.device());
  if (rows.is_cuda() && !has_grouped_mm(rows)) {
    return GroupedSwiglu::apply(rows, gate_up, down, rows_per_expert_of(ends));
  }
  return GroupedSwigluOnDevice::apply(rows, gate_up, down, ends);
}

}  // namespace moe::kernels
