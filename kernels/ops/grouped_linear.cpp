// Weight gradients are written in place into one tensor per layer, never zero-filled whole and
// never stacked from pieces, which is where a node per expert spends 40 % of its time.

#include "kernels/ops/grouped_linear.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/linear.h"

namespace moe::kernels {

namespace {

using at::Tensor;
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

// [total, outer]: product(expert, its rows of `in`, its rows of the result), then zeros.
template <typename Product>
Tensor by_expert(const Tensor& in, int64_t outer, int64_t total,
                 const std::vector<int64_t>& rows_per_expert, Product product) {
  Tensor out = at::empty({total, outer}, in.options());
  int64_t used = 0;
  for_each_expert(rows_per_expert, [&](int64_t expert, int64_t first, int64_t count) {
    used = first + count;
    Tensor target = out.narrow(0, first, count);
    product(expert, in.narrow(0, first, count), target);
  });
  out.narrow(0, used, total - used).zero_();
  return out;
}

// Which rows are whose: how many each expert has, or `ends` where only the device knows that.
struct Segments {
  std::vector<int64_t> rows_per_expert = {};
  Tensor ends = {};

  Tensor product(const Tensor& in, const Tensor& weights, bool transposed) const {
    return ends.defined() ? grouped_product(in, weights, transposed, ends)
                          : grouped_product(in, weights, transposed, in.size(0), rows_per_expert);
  }
  Tensor weight_gradient(const Tensor& left, const Tensor& right, const Tensor& weights) const {
    return ends.defined() ? grouped_weight_gradient(left, right, weights, ends)
                          : grouped_weight_gradient(left, right, weights, rows_per_expert);
  }
};

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& weight,
                        const Segments& segments) {
    RECORD_USER_SCOPE("experts");
    const Tensor by = weight_for_products(weight, rows.scalar_type());
    context->save_for_backward({rows, weight, by, segments.ends});
    context->saved_data["rows_per_expert"] = segments.rows_per_expert;
    return segments.product(rows, by, /*transposed=*/true);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &weight = saved[1];
    const Segments segments{context->saved_data["rows_per_expert"].toIntVector(), saved[3]};
    const Tensor grad = gradients[0].contiguous();
    return {segments.product(grad, saved[2], /*transposed=*/false),
            context->needs_input_grad(1) ? segments.weight_gradient(grad, rows, weight) : Tensor(),
            Tensor()};
  }
};

// Returns true if at::_grouped_mm multiplies `rows`: bf16 or f32, on a CPU or a GPU that has it.
bool fits_grouped_mm(const Tensor& rows) {
  const auto type = rows.scalar_type();
  return (type == at::kBFloat16 || type == at::kFloat) && (rows.is_cpu() || has_grouped_mm(rows));
}

// It takes rows of whole 16 bytes: `tensor`, contiguous, with zeros behind its last dimension or
// its last two. What has narrow rows, an adapter's low rank, is small.
Tensor with_whole_rows(const Tensor& tensor, size_t dimensions) {
  const int64_t step = tensor.scalar_type() == at::kBFloat16 ? 8 : 4;
  std::vector<int64_t> padding;  // before and behind, the last dimension first
  bool is_whole = true;
  for (size_t i = 1; i <= dimensions; ++i) {
    const int64_t missing = (step - tensor.size(-static_cast<int64_t>(i)) % step) % step;
    padding.insert(padding.end(), {0, missing});
    is_whole = is_whole && missing == 0;
  }
  return is_whole ? tensor.contiguous() : at::constant_pad_nd(tensor, padding);
}

// The first `size` of dimension `dimension` of such a product, where it has more.
Tensor first_of(const Tensor& product, int64_t dimension, int64_t size) {
  return product.size(dimension) == size ? product
                                         : product.narrow(dimension, 0, size).contiguous();
}

}  // namespace

bool has_grouped_mm(const Tensor& rows) {
  return rows.is_cuda() && cuda_functions().gpu_has_grouped_mm(rows.get_device());
}

std::vector<int64_t> rows_per_expert_of(const Tensor& ends) {
  const Tensor host = ends.to(at::kCPU, at::kLong);
  const auto* end = host.const_data_ptr<int64_t>();
  std::vector<int64_t> rows(static_cast<size_t>(host.numel()));
  std::adjacent_difference(end, end + host.numel(), rows.begin());
  return rows;
}

Tensor grouped_product(const Tensor& in, const Tensor& weights, bool transposed, int64_t total,
                       const std::vector<int64_t>& rows_per_expert) {
  if (transposed) {
    return grouped_product(in, weights, total, rows_per_expert);
  }
  const auto type = in.scalar_type();
  return by_expert(in, weights.size(2), total, rows_per_expert,
                   [&](int64_t expert, const Tensor& rows, Tensor& out) {
                     operand_product_out(out, {rows, type}, {weights[expert], type});
                   });
}

Tensor grouped_product(const Tensor& in, const Weight& weights, int64_t total,
                       const std::vector<int64_t>& rows_per_expert) {
  return by_expert(in, weights.outer(), total, rows_per_expert,
                   [&](int64_t expert, const Tensor& rows, Tensor& out) {
                     weight_product_out(out, {rows, in.scalar_type()}, weights.matrix(expert));
                   });
}

Tensor grouped_weight_gradient(const Tensor& left, const Tensor& right, const Tensor& weights,
                               const std::vector<int64_t>& rows_per_expert) {
  const auto type = left.scalar_type();
  const Tensor sum = gradient_to_add_to(weights);
  const bool is_new = !sum.defined();
  Tensor gradient = is_new ? at::empty(weights.sizes(), weights.options()) : sum;
  for (size_t expert = 0; expert < rows_per_expert.size(); ++expert) {
    if (is_new && rows_per_expert[expert] == 0) {
      gradient[static_cast<int64_t>(expert)].zero_();
    }
  }
  for_each_expert(rows_per_expert, [&](int64_t expert, int64_t first, int64_t count) {
    Tensor target = gradient[expert];
    const Tensor rows = left.narrow(0, first, count).t();
    operand_product_out(target, {rows, type}, {right.narrow(0, first, count), type}, !is_new);
  });
  return is_new ? gradient : Tensor();
}

Tensor grouped_product(const Tensor& in, const Tensor& weights, bool transposed,
                       const Tensor& ends) {
  const auto type = in.scalar_type();
  if (!fits_grouped_mm(in)) {
    return grouped_product(in, weights, transposed, in.size(0), rows_per_expert_of(ends));
  }
  const Tensor left = with_whole_rows(operand(in, type), 1);
  const Tensor right = with_whole_rows(operand(weights, type), 2);
  const Tensor product = at::_grouped_mm(left, transposed ? right.transpose(1, 2) : right, ends);
  return first_of(product, 1, weights.size(transposed ? 1 : 2)).to(type);
}

Tensor grouped_weight_gradient(const Tensor& left, const Tensor& right, const Tensor& weights,
                               const Tensor& ends) {
  const auto type = left.scalar_type();
  if (!fits_grouped_mm(left)) {
    return grouped_weight_gradient(left, right, weights, rows_per_expert_of(ends));
  }
  const Tensor a = with_whole_rows(operand(left, type), 1);
  const Tensor b = with_whole_rows(operand(right, type), 1);
  const Tensor product =
      first_of(first_of(at::_grouped_mm(a.t(), b, ends), 1, weights.size(1)), 2, weights.size(2));
  if (Tensor sum = gradient_to_add_to(weights); sum.defined()) {
    sum.add_(product);  // widens as it adds
    return {};
  }
  return product.to(weights.scalar_type());
}

bool prefers_gradients_by_expert(const Tensor& weights) {
  constexpr int64_t kLargeExpert = 1 << 21;  // numbers: widened in 6 us, about one launch
  return weights.is_cuda() && weights.scalar_type() == at::kFloat &&
         weights.size(1) * weights.size(2) >= kLargeExpert;
}

Tensor grouped_linear(const Tensor& rows, const Tensor& weight,
                      const std::vector<int64_t>& rows_per_expert) {
  const int64_t used = std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
  TORCH_CHECK(rows.dim() == 2 && weight.dim() == 3 && weight.size(2) == rows.size(1) &&
                  static_cast<int64_t>(rows_per_expert.size()) == weight.size(0) &&
                  used <= rows.size(0),
              "rows ", rows.sizes(), ", weight ", weight.sizes(), ", rows of ",
              rows_per_expert.size(), " experts");
  return GroupedLinear::apply(rows, weight, Segments{rows_per_expert});
}

Tensor grouped_linear(const Tensor& rows, const Tensor& weight, const Tensor& ends) {
  TORCH_CHECK(rows.dim() == 2 && weight.dim() == 3 && weight.size(2) == rows.size(1) &&
                  ends.numel() == weight.size(0) && ends.scalar_type() == at::kInt,
              "rows ", rows.sizes(), ", weight ", weight.sizes(), ", ends ", ends.sizes());
  return GroupedLinear::apply(rows, weight, Segments{{}, ends});
}

}  // namespace moe::kernels
