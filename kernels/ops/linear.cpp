// One autograd node per product or group of products. The products of all experts write into one
// uninitialised gradient tensor: initialisation with zeros, or stacking one tensor per expert, took
// 40 % of the time.

#include "kernels/ops/linear.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <numeric>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

// Returns true if moe::router_logits computes the product: f32 operands, few columns. Its CUDA
// kernel reads bf16 x without a copy in f32.
bool use_router_logits(const Tensor& x, const Tensor& weight, at::ScalarType operands) {
  constexpr int64_t kMaxColumns = 64;
  return has_kernel<"moe::router_logits">(x.device()) && weight.device() == x.device() &&
         operands == at::kFloat && weight.scalar_type() == at::kFloat && is_f32_or_bf16(x) &&
         weight.size(0) <= kMaxColumns;
}

Tensor matmul(const Tensor& left, const Tensor& right, at::ScalarType type, at::ScalarType out) {
  Tensor result = at::empty({left.size(0), right.size(1)}, left.options().dtype(out));
  matmul_out(result, left, right, type);
  return result;
}

// matmul_out on other devices, by LibTorch, which sums products of bf16 in f32.
void matmul_out_default(const Tensor& result, const Tensor& left, at::TensorList right,
                        at::ScalarType type, bool /*is_mapped*/, bool accumulate) {
  TORCH_CHECK(right.size() == 1, "a weight in several tensors requires a CPU");
  Tensor out = result;
  const Tensor a = left.to(type), b = right[0].to(type);
  if (type == out.scalar_type()) {
    accumulate ? out.addmm_(a, b) : at::mm_out(out, a, b);
  } else if (out.scalar_type() == at::kFloat) {
    accumulate ? at::addmm_out(out, out, a, b, at::kFloat) : at::mm_out(out, a, b, at::kFloat);
  } else {
    accumulate ? out.add_(at::mm(a, b)) : out.copy_(at::mm(a, b));
  }
}

void call_matmul_out(const Tensor& out, const Tensor& left, at::TensorList right,
                     at::ScalarType type, bool is_mapped, bool accumulate) {
  call<"moe::matmul_out", decltype(matmul_out_cpu)>(out, left, right, type, is_mapped, accumulate);
}

Tensor operand(const Tensor& tensor, at::ScalarType type) {
  return call<"moe::operand", decltype(operand_cpu)>(tensor, type);
}

bool has_grouped_mm_gpu(const Tensor& rows) {
  return cuda_functions().gpu_has_grouped_mm(rows.get_device());
}

// Returns f64 for f64 x (gradient checks), else f32.
at::ScalarType accumulate_dtype(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Disables TF32 until the result is destroyed. LibTorch's flag is global to the process, so that
// concurrent products of other threads may be computed without TF32 too.
[[nodiscard]] auto disable_tf32(bool disable) {
  const bool was_allowed = disable && at::globalContext().allowTF32CuBLAS();
  const auto allow = [was_allowed](bool allowed) {
    if (was_allowed) {
      at::globalContext().setAllowTF32CuBLAS(allowed);
    }
  };
  allow(false);
  return c10::make_scope_exit([allow] { allow(true); });
}

struct LinearTypes {
  at::ScalarType operands, out;
  bool allow_tf32 = true;
};

Tensor biased_linear_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         at::ScalarType type, at::ScalarType out) {
  return matmul(x, weight.t(), type, accumulate_dtype(x)).add_(bias).to(out);
}

// Adds the bias before the sum is rounded.
Tensor biased_linear_default(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             at::ScalarType type, at::ScalarType out) {
  return at::addmm(bias.to(type), x.to(type), weight.to(type).t()).to(out);
}

// weight_as_operand: the result of weight_operand().
Tensor linear_forward(const Tensor& x, const Tensor& weight, const Tensor& weight_as_operand,
                      const std::optional<Tensor>& bias, const LinearTypes& types) {
  const auto in_f32 = disable_tf32(!types.allow_tf32);
  if (bias) {
    return call<"moe::biased_linear", decltype(biased_linear_cpu)>(x, weight_as_operand, *bias,
                                                                   types.operands, types.out);
  }
  if (use_router_logits(x, weight, types.operands)) {
    return call<"moe::router_logits", Tensor(const Tensor&, const Tensor&)>(x, weight);
  }
  return matmul(x, weight_as_operand.t(), types.operands, types.out);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const LinearTypes& types) {
    RECORD_USER_SCOPE("projections");
    context->saved_data["operands"] = static_cast<int64_t>(types.operands);
    context->saved_data["allow_tf32"] = types.allow_tf32;
    context->saved_data["has_bias"] = bias.has_value();
    const Tensor weight_as_operand = weight_operand(weight, types.operands);
    context->save_for_backward({x, weight, weight_as_operand});
    return linear_forward(x, weight, weight_as_operand, bias, types);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto type = static_cast<at::ScalarType>(context->saved_data["operands"].toInt());
    const auto in_f32 = disable_tf32(!context->saved_data["allow_tf32"].toBool());
    const Tensor& grad = gradients[0];
    const bool has_bias = context->saved_data["has_bias"].toBool();
    variable_list result(4);
    if (!has_bias && use_router_logits(x, weight, type)) {
      std::tie(result[0], result[1]) =
          call<"moe::router_logits_backward",
               std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, bool, bool)>(
              grad, x, weight, context->needs_input_grad(0), context->needs_input_grad(1));
      return result;
    }
    if (context->needs_input_grad(0)) {
      result[0] = matmul(grad, saved[2], type, x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      if (Tensor sum = gradient_to_add_to(weight); sum.defined()) {
        matmul_out(sum, grad.t(), x, type, /*accumulate=*/true);
      } else {
        result[1] = matmul(grad.t(), x, type, weight.scalar_type());
      }
    }
    if (has_bias && context->needs_input_grad(2)) {
      result[2] = operand(grad, type).sum(0, false, weight.scalar_type());
    }
    return result;
  }
};

Tensor apply(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
             const LinearTypes& types) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) &&
                  (!bias || bias->size(0) == weight.size(0)),
              "x ", x.sizes(), ", weight ", weight.sizes());
  if (!at::GradMode::is_enabled()) {
    RECORD_USER_SCOPE("projections");
    return linear_forward(x, weight, weight_operand(weight, types.operands), bias, types);
  }
  return Linear::apply(x, weight, bias, types);
}

// Returns [total, outer]. Calls product(expert, rows of `in`, rows of the result) for each expert
// that has rows. The rows after those of the last expert are 0.
template <typename Product>
Tensor product_per_expert(const Tensor& in, int64_t outer, int64_t total,
                          const std::vector<int64_t>& rows_per_expert, Product product) {
  Tensor out = at::empty({total, outer}, in.options());
  int64_t expert = 0, first = 0;
  for (const int64_t count : rows_per_expert) {
    if (count > 0) {
      Tensor target = out.narrow(0, first, count);
      product(expert, in.narrow(0, first, count), target);
    }
    ++expert;
    first += count;
  }
  out.narrow(0, first, total - first).zero_();
  return out;
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& weight,
                        const Segments& segments) {
    RECORD_USER_SCOPE("experts");
    const Tensor weight_as_operand = weight_for_products(weight, rows.scalar_type());
    context->save_for_backward({rows, weight, weight_as_operand, segments.ends});
    context->saved_data["rows_per_expert"] = segments.rows_per_expert;
    return segments.product(rows, weight_as_operand, /*transposed=*/true, rows.size(0));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &weight = saved[1];
    const Segments segments{context->saved_data["rows_per_expert"].toIntVector(), saved[3]};
    const Tensor grad = gradients[0].contiguous();
    return {segments.product(grad, saved[2], /*transposed=*/false, grad.size(0)),
            context->needs_input_grad(1) ? segments.weight_gradient(grad, rows, weight) : Tensor(),
            Tensor()};
  }
};

// Returns true if at::_grouped_mm supports `rows`: bf16 or f32, on a device that takes the ends.
bool fits_grouped_mm(const Tensor& rows) { return is_f32_or_bf16(rows) && can_use_ends(rows); }

// Returns `tensor`, contiguous, with its last `dimensions` dimensions zero-padded to multiples of
// 16 bytes, as at::_grouped_mm requires. Tensors with narrow rows (low-rank adapters) are small, so
// that the copies are cheap.
Tensor pad_rows(const Tensor& tensor, size_t dimensions) {
  const int64_t step = tensor.scalar_type() == at::kBFloat16 ? 8 : 4;
  std::vector<int64_t> padding;  // before and after, the last dimension first
  bool is_whole = true;
  for (size_t i = 1; i <= dimensions; ++i) {
    const int64_t missing = (step - tensor.size(-static_cast<int64_t>(i)) % step) % step;
    padding.insert(padding.end(), {0, missing});
    is_whole = is_whole && missing == 0;
  }
  return is_whole ? tensor.contiguous() : at::constant_pad_nd(tensor, padding);
}

// Returns the first `size` entries of a dimension: removes the padding of pad_rows().
Tensor truncate(const Tensor& product, int64_t dimension, int64_t size) {
  return product.size(dimension) == size ? product
                                         : product.narrow(dimension, 0, size).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(moe, CPU, library) {
  library.impl("operand", &operand_cpu);
  library.impl("weight_operand", [](const Tensor& weight, at::ScalarType) { return weight; });
  library.impl("matmul_out", &matmul_out_cpu);
  library.impl("biased_linear", &biased_linear_cpu);
  library.impl("has_grouped_mm", [](const Tensor&) { return false; });
  library.impl("can_use_ends", [](const Tensor&) { return true; });
}

// Other devices.
TORCH_LIBRARY_IMPL(moe, CompositeExplicitAutograd, library) {
  const auto convert = [](const Tensor& tensor, at::ScalarType type) { return tensor.to(type); };
  library.impl("operand", convert);
  library.impl("weight_operand", convert);
  library.impl("matmul_out", &matmul_out_default);
  library.impl("biased_linear", &biased_linear_default);
  library.impl("has_grouped_mm", &has_grouped_mm_gpu);
  library.impl("can_use_ends", &has_grouped_mm_gpu);
}

Tensor weight_operand(const Tensor& weight, at::ScalarType type) {
  return call<"moe::weight_operand", decltype(operand_cpu)>(weight_for_products(weight, type),
                                                            type);
}

void matmul_out(Tensor& out, const Tensor& left, const Tensor& right, at::ScalarType type,
                bool accumulate) {
  TORCH_CHECK(left.size(1) == right.size(0) && out.size(0) == left.size(0) &&
              out.size(1) == right.size(1));
  call_matmul_out(out, left, right, type, /*is_mapped=*/false, accumulate);
}

void weight_matmul_out(Tensor& out, const Tensor& left, const RowBlocks& rows, at::ScalarType type,
                       bool accumulate) {
  std::vector<Tensor> columns;
  int64_t outer = 0;
  for (const Tensor& block : rows) {
    TORCH_CHECK(left.size(1) == block.size(1), "left ", left.sizes(), ", rows ", block.sizes());
    columns.push_back(block.t());
    outer += block.size(0);
  }
  TORCH_CHECK(out.size(0) == left.size(0) && out.size(1) == outer);
  call_matmul_out(out, left, columns, type, /*is_mapped=*/true, accumulate);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt,
               {x.scalar_type(), x.scalar_type()});
}

Tensor linear(const Tensor& x, const Weight& weight, const Tensor& bias) {
  if (weight.is_one_tensor()) {
    return linear(x, weight.tensor, bias);
  }
  RECORD_USER_SCOPE("projections");
  const auto type = x.scalar_type();
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()) && weight.count() == 1 &&
                  x.dim() == 2 && weight.inner() == x.size(1),
              "x ", x.sizes(), ", weight [", weight.outer(), ", ", weight.inner(),
              "] in several tensors");
  Tensor y = at::empty({x.size(0), weight.outer()},
                       x.options().dtype(bias.defined() ? accumulate_dtype(x) : type));
  weight_matmul_out(y, x, weight.matrix(0), type);
  return bias.defined() ? y.add_(bias).to(type) : y;
}

void add_linear(Tensor& sum, const Tensor& x, const Weight& weight) {
  RECORD_USER_SCOPE("projections");
  TORCH_CHECK(!at::GradMode::is_enabled() && sum.scalar_type() == at::kFloat &&
                  weight.count() == 1 && x.dim() == 2 && weight.inner() == x.size(1) &&
                  sum.size(0) == x.size(0) && sum.size(1) == weight.outer(),
              "sum ", sum.sizes(), ", x ", x.sizes(), ", weight [", weight.outer(), ", ",
              weight.inner(), "]");
  const bool is_skinny = x.size(0) <= kMaxSkinnyRows;  // skinny_gemm() does not accumulate
  Tensor y = is_skinny ? at::empty_like(sum) : sum;
  weight_matmul_out(y, x, weight.matrix(0), x.scalar_type(), /*accumulate=*/!is_skinny);
  if (is_skinny) {
    sum.add_(y);
  }
}

Tensor linear_to_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {x.scalar_type(), accumulate_dtype(x)});
}

Tensor linear_in_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {accumulate_dtype(x), accumulate_dtype(x), /*allow_tf32=*/false});
}

bool has_grouped_mm(const Tensor& rows) {
  return call<"moe::has_grouped_mm", decltype(has_grouped_mm_gpu)>(rows);
}

bool can_use_ends(const Tensor& rows) {
  return call<"moe::can_use_ends", decltype(has_grouped_mm_gpu)>(rows);
}

std::vector<int64_t> read_rows_per_expert(const Tensor& ends) {
  const Tensor host = ends.cpu().to(at::kLong);
  const auto* end = host.const_data_ptr<int64_t>();
  std::vector<int64_t> rows(static_cast<size_t>(host.numel()));
  std::adjacent_difference(end, end + host.numel(), rows.begin());
  return rows;
}

Tensor grouped_matmul(const Tensor& in, const Weight& weights, int64_t total,
                      const std::vector<int64_t>& rows_per_expert) {
  return product_per_expert(in, weights.outer(), total, rows_per_expert,
                            [&](int64_t expert, const Tensor& rows, Tensor& out) {
                              weight_matmul_out(out, rows, weights.matrix(expert),
                                                in.scalar_type());
                            });
}

Tensor Segments::product(const Tensor& in, const Tensor& weights, bool transposed,
                         int64_t total) const {
  const auto type = in.scalar_type();
  if (ends.defined() && fits_grouped_mm(in)) {
    const Tensor left = pad_rows(operand(in, type), 1);
    const Tensor right = pad_rows(operand(weights, type), 2);
    const Tensor product = at::_grouped_mm(left, transposed ? right.transpose(1, 2) : right, ends);
    return truncate(product, 1, weights.size(transposed ? 1 : 2)).to(type);
  }
  const auto counts = ends.defined() ? read_rows_per_expert(ends) : rows_per_expert;
  if (transposed) {
    return grouped_matmul(in, weights, total, counts);
  }
  return product_per_expert(in, weights.size(2), total, counts,
                            [&](int64_t expert, const Tensor& rows, Tensor& out) {
                              matmul_out(out, rows, weights[expert], type);
                            });
}

Tensor Segments::weight_gradient(const Tensor& left, const Tensor& right,
                                 const Tensor& weights) const {
  const auto type = left.scalar_type();
  const Tensor sum = gradient_to_add_to(weights);
  if (ends.defined() && fits_grouped_mm(left)) {
    const Tensor a = pad_rows(operand(left, type), 1), b = pad_rows(operand(right, type), 1);
    const Tensor product =
        truncate(truncate(at::_grouped_mm(a.t(), b, ends), 1, weights.size(1)), 2, weights.size(2));
    if (sum.defined()) {
      sum.add_(product);  // bf16 to f32
      return {};
    }
    return product.to(weights.scalar_type());
  }
  const auto counts = ends.defined() ? read_rows_per_expert(ends) : rows_per_expert;
  const bool is_new = !sum.defined();
  const Tensor gradient = is_new ? at::empty(weights.sizes(), weights.options()) : sum;
  int64_t expert = 0, first = 0;
  for (const int64_t count : counts) {
    Tensor target = gradient[expert++];
    if (count > 0) {
      matmul_out(target, left.narrow(0, first, count).t(), right.narrow(0, first, count), type,
                 /*accumulate=*/!is_new);
    } else if (is_new) {
      target.zero_();
    }
    first += count;
  }
  return is_new ? gradient : Tensor();
}

bool use_per_expert_gradients(const Tensor& weights) {
  constexpr int64_t kLargeExpert = 1 << 21;  // elements; widening them takes 6 us, like a launch
  return weights.scalar_type() == at::kFloat && weights.size(1) * weights.size(2) >= kLargeExpert;
}

int64_t Segments::experts() const {
  return ends.defined() ? ends.numel() : static_cast<int64_t>(rows_per_expert.size());
}

int64_t Segments::used_rows() const {
  return std::accumulate(rows_per_expert.begin(), rows_per_expert.end(), int64_t{0});
}

Tensor grouped_linear(const Tensor& rows, const Tensor& weight, const Segments& segments) {
  TORCH_CHECK(rows.dim() == 2 && weight.dim() == 3 && weight.size(2) == rows.size(1) &&
                  segments.experts() == weight.size(0) && segments.used_rows() <= rows.size(0) &&
                  (!segments.ends.defined() || segments.ends.scalar_type() == at::kInt),
              "rows ", rows.sizes(), ", weight ", weight.sizes(), ", rows of ", segments.experts(),
              " experts");
  return GroupedLinear::apply(rows, weight, segments);
}

int64_t Weight::count() const {
  return is_one_tensor() ? (tensor.dim() == 3 ? tensor.size(0) : 1)
                         : static_cast<int64_t>(matrices->size());
}

RowBlocks Weight::matrix(int64_t index) const {
  return is_one_tensor() ? RowBlocks{tensor.dim() == 3 ? tensor[index] : tensor}
                         : matrices->at(static_cast<size_t>(index));
}

int64_t Weight::outer() const {
  if (is_one_tensor()) {
    return tensor.size(-2);
  }
  int64_t rows = 0;
  for (const auto& block : matrices->front()) {
    rows += block.size(0);
  }
  return rows;
}

int64_t Weight::inner() const {
  return is_one_tensor() ? tensor.size(-1) : matrices->front().front().size(1);
}

}  // namespace moe::kernels
