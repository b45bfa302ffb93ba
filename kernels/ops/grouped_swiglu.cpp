#include "kernels/ops/grouped_swiglu.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/operations.h"
#include "kernels/ops/swiglu.h"

namespace moe::kernels {

namespace {

struct GroupedSwiglu : torch::autograd::Function<GroupedSwiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& gate_up,
                        const Tensor& down, const Segments& segments) {
    RECORD_USER_SCOPE("experts");
    const Tensor& ends = segments.ends;
    const int64_t used = ends.defined() ? rows.size(0) : segments.used_rows();
    TORCH_CHECK(used <= rows.size(0), used, " rows of ", rows.size(0));
    const auto as_operand = ends.defined() ? weight_operand : weight_for_products;
    const Tensor gate_up_operand = as_operand(gate_up, rows.scalar_type());
    const Tensor down_operand = as_operand(down, rows.scalar_type());
    const Tensor hidden = segments.product(rows, gate_up_operand, /*transposed=*/true, used);
    context->save_for_backward({rows, gate_up, down, hidden, ends, gate_up_operand, down_operand});
    context->saved_data["rows_per_expert"] = segments.rows_per_expert;
    return segments.product(swiglu_forward(hidden, ends), down_operand, /*transposed=*/true,
                            rows.size(0));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &gate_up = saved[1], &down = saved[2], &hidden = saved[3];
    const Tensor &ends = saved[4], &gate_up_operand = saved[5], &down_operand = saved[6];
    const Segments segments{context->saved_data["rows_per_expert"].toIntVector(), ends};
    const bool trains = context->needs_input_grad(1) || context->needs_input_grad(2);
    std::optional<HostCopy> host_ends;
    if (ends.defined() && trains && rows.scalar_type() == at::kBFloat16 &&
        use_per_expert_gradients(gate_up)) {
      host_ends.emplace(ends);
    }
    const Tensor grad_out = gradients[0].narrow(0, 0, hidden.size(0)).contiguous();
    // Gradient of the activation; swiglu_backward_() overwrites it with the activation.
    Tensor activation =
        segments.product(grad_out, down_operand, /*transposed=*/false, hidden.size(0)).contiguous();
    const Tensor grad_hidden = context->needs_input_grad(2)
                                   ? swiglu_backward_(activation, hidden, ends)
                                   : swiglu_backward(std::exchange(activation, {}), hidden, ends);
    const auto input_gradient = [&] {
      return segments.product(grad_hidden, gate_up_operand, /*transposed=*/false, rows.size(0));
    };
    // Launched before the weight gradients: the GPU has work while the host waits for the ends.
    Tensor grad_rows = ends.defined() ? input_gradient() : Tensor();
    const Segments by_expert =
        host_ends ? Segments{read_rows_per_expert(host_ends->get())} : segments;
    const Tensor grad_down =
        activation.defined() ? by_expert.weight_gradient(grad_out, activation, down) : Tensor();
    activation.reset();  // frees memory for the products that follow
    const Tensor grad_gate_up = context->needs_input_grad(1)
                                    ? by_expert.weight_gradient(grad_hidden, rows, gate_up)
                                    : Tensor();
    if (!ends.defined()) {
      grad_rows = input_gradient();
    }
    return {grad_rows, grad_gate_up, grad_down, Tensor()};
  }
};

// Returns true if a block of gate and one of up, with this depth, fit into the caches together.
bool fits_cache(int64_t inner) { return inner > 0 && inner <= 2 * kGemmDepth; }

// Returns true if the products of gate and up can be fused with the activation.
bool can_fuse_swiglu(const Tensor& rows, int64_t count, const RowBlocks& gate_up) {
  const auto dtype = gate_up.front().scalar_type();
  return count > kMaxSkinnyRows && fits_cache(rows.size(1)) && rows.stride(1) == 1 &&
         is_f32_or_bf16(rows) && !(rows.scalar_type() == at::kBFloat16 && dtype == at::kHalf) &&
         std::all_of(gate_up.begin(), gate_up.end(), [&](const Tensor& block) {
           return block.scalar_type() == dtype && block.stride(1) == 1;
         });
}

// Returns silu(gate) * up [used, F] for the rows of all experts.
Tensor ffn_activation(const Tensor& rows, const Weight& gate_up, int64_t used,
                      const std::vector<int64_t>& rows_per_expert) {
  const int64_t width = gate_up.outer() / 2, inner = rows.size(1);
  const auto type = rows.scalar_type();
  const auto unfused = [&](const Tensor& x, const RowBlocks& matrix) {
    Tensor hidden = at::empty({x.size(0), 2 * width}, rows.options());
    weight_matmul_out(hidden, x, matrix, type);
    return swiglu_forward(hidden, {});
  };
  if (rows_per_expert.size() == 1 && !can_fuse_swiglu(rows, used, gate_up.matrix(0))) {
    return unfused(rows.narrow(0, 0, used), gate_up.matrix(0));
  }
  Tensor out = at::empty({used, width}, rows.options());
  int64_t expert = 0, first = 0;
  for (const int64_t count : rows_per_expert) {
    const RowBlocks matrix = gate_up.matrix(expert++);
    const Tensor x = rows.narrow(0, first, count), y = out.narrow(0, first, count);
    if (can_fuse_swiglu(rows, count, matrix)) {
      std::vector<ColumnBlock> columns;
      for (const Tensor& block : matrix) {
        columns.push_back({matrix_view(block, type).transposed(), block.size(0)});
      }
      fused_gemm_swiglu_cpu({matrix_view(x, type), columns, y.data_ptr(), count, inner, width,
                             type == at::kBFloat16});
    } else if (count > 0) {
      y.copy_(unfused(x, matrix));
    }
    first += count;
  }
  return out;
}

}  // namespace

int64_t ffn_activation_numel(int64_t inner, int64_t width) {
  return fits_cache(inner) ? width : 3 * width;
}

Tensor grouped_swiglu(const Tensor& rows, const Tensor& gate_up, const Tensor& down,
                      const Segments& segments) {
  const Tensor& ends = segments.ends;
  const int64_t experts = segments.experts();
  TORCH_CHECK(
      rows.dim() == 2 && gate_up.dim() == 3 && down.dim() == 3 && gate_up.size(2) == rows.size(1) &&
          down.size(1) == rows.size(1) && down.size(2) * 2 == gate_up.size(1) &&
          gate_up.size(0) == experts && down.size(0) == experts &&
          (!ends.defined() || (ends.scalar_type() == at::kInt && ends.device() == rows.device())),
      "rows ", rows.sizes(), ", gate_up ", gate_up.sizes(), ", down ", down.sizes(), ", rows of ",
      experts, " experts");
  return ends.defined() && !can_use_ends(rows)
             ? GroupedSwiglu::apply(rows, gate_up, down, Segments{read_rows_per_expert(ends)})
             : GroupedSwiglu::apply(rows, gate_up, down, segments);
}

Tensor grouped_swiglu(const Tensor& rows, const Weight& gate_up, const Weight& down,
                      const Segments& segments) {
  if (gate_up.is_one_tensor() && down.is_one_tensor()) {
    return grouped_swiglu(rows, gate_up.tensor, down.tensor, segments);
  }
  RECORD_USER_SCOPE("experts");
  const int64_t used = segments.used_rows(), experts = segments.experts();
  TORCH_CHECK(!segments.ends.defined() && !(at::GradMode::is_enabled() && rows.requires_grad()) &&
                  used <= rows.size(0) && gate_up.count() == experts && down.count() == experts &&
                  gate_up.inner() == rows.size(1) && down.outer() == rows.size(1) &&
                  down.inner() * 2 == gate_up.outer(),
              "rows ", rows.sizes(), ", used ", used, ", ", gate_up.count(), " gate_up [",
              gate_up.outer(), ", ", gate_up.inner(), "] and ", down.count(), " down [",
              down.outer(), ", ", down.inner(), "], ", experts, " experts");
  return grouped_matmul(ffn_activation(rows, gate_up, used, segments.rows_per_expert), down,
                        rows.size(0), segments.rows_per_expert);
}

void add_swiglu(Tensor& sum, const Tensor& rows, const Weight& gate_up, const Weight& down) {
  RECORD_USER_SCOPE("experts");
  TORCH_CHECK(!at::GradMode::is_enabled() && gate_up.count() == 1 &&
                  gate_up.inner() == rows.size(1) && down.inner() * 2 == gate_up.outer(),
              "rows ", rows.sizes(), ", gate_up [", gate_up.outer(), ", ", gate_up.inner(), "]");
  add_linear(sum, ffn_activation(rows, gate_up, rows.size(0), {rows.size(0)}), down);
}

}  // namespace moe::kernels
