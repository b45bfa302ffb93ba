// One autograd node per product or per group of products. Autograd saves the input in its own
// dtype, and a weight gradient has the layout of the weight. The products of all experts write into
// one gradient tensor: initialising it with zeros, or stacking one tensor per expert, took 40 % of
// the time.

#include "kernels/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns true if the router kernel computes the product: f32 operands, few columns, on a GPU. The
// kernel reads bf16 x directly; other products would first write x in f32.
bool use_router_kernel(const Tensor& x, const Tensor& weight, at::ScalarType operands) {
  constexpr int64_t kMaxColumns = 64;
  return x.is_cuda() && weight.device() == x.device() && operands == at::kFloat &&
         weight.scalar_type() == at::kFloat &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
         weight.size(0) <= kMaxColumns;
}

Tensor matmul(const Operand& left, const Operand& right, at::ScalarType out) {
  Tensor result =
      at::empty({left.tensor.size(0), right.tensor.size(1)}, left.tensor.options().dtype(out));
  operand_product_out(result, left, right);
  return result;
}

bool is_f32_or_bf16(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

// The right operand of a product: matrices [K, N_i], concatenated along columns to [K, N].
struct ConcatColumns {
  at::ArrayRef<Tensor> matrices;
  at::ScalarType type;
  bool is_mapped = false;  // the matrices map a checkpoint file

  template <typename Is>
  bool all(Is is) const {
    return std::all_of(matrices.begin(), matrices.end(), is);
  }
  std::vector<ColumnBlock> blocks() const {
    std::vector<ColumnBlock> views;
    for (const Tensor& matrix : matrices) {
      views.push_back({matrix_view(matrix, type), matrix.size(1)});
    }
    return views;
  }
};

// Returns true if gemm() computes the product. The size of the whole product decides, so that the
// sums do not depend on how the right operand is split.
bool can_use_gemm(const Tensor& out, const Operand& left, const ConcatColumns& right,
                  bool accumulate) {
  const auto is_read = [&](const Tensor& matrix) {
    return is_f32_or_bf16(matrix) ||
           (matrix.scalar_type() == at::kHalf && right.type == at::kFloat);
  };
  return out.is_cpu() && is_f32_or_bf16(out) && is_f32_or_bf16(left.tensor) && right.all(is_read) &&
         out.stride(1) == 1 && !(accumulate && out.scalar_type() == at::kBFloat16) &&
         use_own_gemm({out.size(0), out.size(1), left.tensor.size(1)});
}

// Computes the product by skinny_gemm() and returns true. Returns false if the product has many
// rows or the right operand is not supported. Operands in 16 bits and mapped f32 are supported;
// other f32 operands, as in training, are not.
bool try_skinny_gemm(Tensor& out, const Operand& left, const ConcatColumns& right) {
  const auto is_read = [&](const Tensor& matrix) {
    return matrix.scalar_type() == at::kBFloat16 ||
           (right.type == at::kFloat && (matrix.scalar_type() == at::kHalf ||
                                         (matrix.scalar_type() == at::kFloat && right.is_mapped)));
  };
  if (!out.is_cpu() || out.size(0) > kMaxSkinnyRows || !right.all(is_read) ||
      !is_f32_or_bf16(left.tensor)) {
    return false;
  }
  const GemmShape shape{out.size(0), out.size(1), left.tensor.size(1)};
  const std::vector<ColumnBlock> b = right.blocks();
  if (!std::all_of(b.begin(), b.end(),
                   [&](const ColumnBlock& block) { return can_use_skinny_gemm(shape, block.b); })) {
    return false;
  }
  const Tensor a = operand(left.tensor, left.type).contiguous();
  const bool is_in_place = out.scalar_type() == at::kFloat && out.stride(1) == 1;
  Tensor sums = is_in_place ? out : at::empty(out.sizes(), a.options());
  skinny_gemm(shape, a.const_data_ptr<float>(), b, sums.data_ptr<float>(), sums.stride(0));
  if (!is_in_place) {
    out.copy_(sums);
  }
  return true;
}

Tensor product_to_f32(const Tensor& left, const Tensor& right) {
  return left.scalar_type() == at::kBFloat16 ? at::mm(left, right, at::kFloat)
                                             : product(left, right);
}

void libtorch_product_out(Tensor& out, const Operand& left, const Operand& right, bool accumulate) {
  const Tensor a = operand(left.tensor, left.type), b = operand(right.tensor, right.type);
  if (a.scalar_type() == out.scalar_type()) {
    product_out(out, a, b, accumulate);
  } else if (accumulate && out.is_cuda() && out.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b, at::kFloat);
  } else if (accumulate) {
    out.add_(product_to_f32(a, b));
  } else if (out.scalar_type() == at::kFloat) {
    at::mm_out(out, a, b, at::kFloat);
  } else {
    out.copy_(product(a, b));
  }
}

void concat_matmul_out(Tensor& out, const Operand& left, const ConcatColumns& right,
                       bool accumulate) {
  if (!accumulate && try_skinny_gemm(out, left, right)) {
    return;
  }
  if (can_use_gemm(out, left, right, accumulate)) {
    const GemmShape shape{out.size(0), out.size(1), left.tensor.size(1)};
    const MatrixView a = matrix_view(left.tensor, left.type);
    if (out.scalar_type() == at::kFloat) {
      gemm(shape, a, right.blocks(), out.data_ptr<float>(), out.stride(0), accumulate);
    } else {
      gemm_to_bf16(shape, a, right.blocks(), static_cast<uint16_t*>(out.data_ptr()), out.stride(0));
    }
    return;
  }
  int64_t first = 0;
  for (const Tensor& matrix : right.matrices) {
    Tensor columns = out.narrow(1, first, matrix.size(1));
    // A single block in 16 bits can use skinny_gemm() even if blocks in f32 cannot.
    if (right.matrices.size() == 1 || accumulate ||
        !try_skinny_gemm(columns, left, {matrix, right.type, right.is_mapped})) {
      libtorch_product_out(columns, left, {matrix, right.type}, accumulate);
    }
    first += matrix.size(1);
  }
}

void weight_product_out(Tensor& out, const Operand& left, const RowBlocks& rows, bool is_mapped,
                        bool accumulate) {
  std::vector<Tensor> columns;
  int64_t outer = 0;
  for (const Tensor& block : rows) {
    TORCH_CHECK(left.tensor.size(1) == block.size(1), "left ", left.tensor.sizes(), ", rows ",
                block.sizes());
    columns.push_back(block.t());
    outer += block.size(0);
  }
  TORCH_CHECK(out.size(0) == left.tensor.size(0) && out.size(1) == outer);
  concat_matmul_out(out, left, {columns, left.type, is_mapped}, accumulate);
}

// Returns f64 for f64 x (gradient checks), else f32.
at::ScalarType accumulate_dtype(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Disables TF32 in its scope. LibTorch's flag is global to the process, so that concurrent products
// of other threads may be computed without TF32 too.
class DisableTf32 {
 public:
  explicit DisableTf32(bool disable)
      : was_allowed_(disable && at::globalContext().allowTF32CuBLAS()) {
    if (was_allowed_) {
      at::globalContext().setAllowTF32CuBLAS(false);
    }
  }
  ~DisableTf32() {
    if (was_allowed_) {
      at::globalContext().setAllowTF32CuBLAS(true);
    }
  }
  DisableTf32(const DisableTf32&) = delete;
  DisableTf32& operator=(const DisableTf32&) = delete;

 private:
  bool was_allowed_;
};

struct LinearTypes {
  at::ScalarType operands, out;
  bool allow_tf32 = true;
};

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const LinearTypes& types) {
    RECORD_USER_SCOPE("projections");
    const auto [operands, out, allow_tf32] = types;
    const DisableTf32 in_f32(!allow_tf32);
    context->saved_data["operands"] = static_cast<int64_t>(operands);
    context->saved_data["allow_tf32"] = allow_tf32;
    context->saved_data["has_bias"] = bias.has_value();
    if (!bias && use_router_kernel(x, weight, operands)) {
      context->save_for_backward({x, weight, weight});
      return call<"moe::router_logits", decltype(router_logits_on<router_logits_cuda>)>(x, weight);
    }
    const Tensor by = weight_operand(weight, operands);
    context->save_for_backward({x, weight, by});
    if (bias && x.is_cuda()) {
      const Tensor left = operand(x, operands), right = operand(by, operands).t();
      return at::addmm(bias->to(left.scalar_type()), left, right).to(out);
    }
    if (bias) {
      return matmul({x, operands}, {by.t(), operands}, accumulate_dtype(x)).add_(*bias).to(out);
    }
    return matmul({x, operands}, {by.t(), operands}, out);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto type = static_cast<at::ScalarType>(context->saved_data["operands"].toInt());
    const DisableTf32 in_f32(!context->saved_data["allow_tf32"].toBool());
    const Tensor& grad = gradients[0];
    const bool has_bias = context->saved_data["has_bias"].toBool();
    variable_list result(4);
    if (!has_bias && use_router_kernel(x, weight, type)) {
      const auto [grad_x, grad_weight] =
          call<"moe::router_logits_backward",
               decltype(router_logits_backward_on<router_logits_backward_cuda>)>(
              grad, x, weight, context->needs_input_grad(0), context->needs_input_grad(1));
      return {grad_x, grad_weight, Tensor(), Tensor()};
    }
    if (context->needs_input_grad(0)) {
      result[0] = matmul({grad, type}, {saved[2], type}, x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      if (Tensor sum = gradient_to_add_to(weight); sum.defined()) {
        operand_product_out(sum, {grad.t(), type}, {x, type}, /*accumulate=*/true);
      } else {
        result[1] = matmul({grad.t(), type}, {x, type}, weight.scalar_type());
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
  if (!at::GradMode::is_enabled() && x.is_cpu() && !bias) {
    RECORD_USER_SCOPE("projections");
    return matmul({x, types.operands}, {weight.t(), types.operands}, types.out);
  }
  return Linear::apply(x, weight, bias, types);
}

// Calls each(expert, first row, number of rows) for each expert that has rows.
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

// Returns [total, outer]. Calls product(expert, rows of `in`, rows of the result) for each expert
// that has rows. The rows after those of the last expert are 0.
template <typename Product>
Tensor product_per_expert(const Tensor& in, int64_t outer, int64_t total,
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

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& weight,
                        const Segments& segments) {
    RECORD_USER_SCOPE("experts");
    const Tensor by = weight_for_products(weight, rows.scalar_type());
    context->save_for_backward({rows, weight, by, segments.ends});
    context->saved_data["rows_per_expert"] = segments.rows_per_expert;
    return segments.product(rows, by, /*transposed=*/true, rows.size(0));
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

// Returns true if at::_grouped_mm supports `rows`: bf16 or f32, on a CPU or if has_grouped_mm().
bool fits_grouped_mm(const Tensor& rows) {
  const auto type = rows.scalar_type();
  return (type == at::kBFloat16 || type == at::kFloat) && (rows.is_cpu() || has_grouped_mm(rows));
}

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

Tensor operand(const Tensor& tensor, at::ScalarType type) {
  const Tensor rounded = tensor.to(type);
  return type == at::kBFloat16 && !tensor.is_cuda() ? rounded.to(at::kFloat) : rounded;
}

Tensor weight_operand(const Tensor& weight, at::ScalarType type) {
  const Tensor read = weight_for_products(weight, type);
  return read.is_cuda() ? operand(read, type) : read;
}

void operand_product_out(Tensor& out, const Operand& left, const Operand& right, bool accumulate) {
  TORCH_CHECK(left.tensor.size(1) == right.tensor.size(0) && out.size(0) == left.tensor.size(0) &&
              out.size(1) == right.tensor.size(1));
  concat_matmul_out(out, left, {right.tensor, right.type}, accumulate);
}

void weight_product_out(Tensor& out, const Operand& left, const RowBlocks& rows) {
  weight_product_out(out, left, rows, /*is_mapped=*/true, /*accumulate=*/false);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  return apply(x, weight, given, {x.scalar_type(), x.scalar_type()});
}

Tensor linear(const Tensor& x, const Weight& weight, const Tensor& bias) {
  if (weight.is_one_tensor()) {
    return linear(x, weight.tensor, bias);
  }
  RECORD_USER_SCOPE("projections");
  const auto type = x.scalar_type();
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()) && weight.count() == 1 &&
                  x.dim() == 2 && x.is_cpu() && weight.inner() == x.size(1),
              "x ", x.sizes(), ", weight [", weight.outer(), ", ", weight.inner(), "] apart");
  Tensor y = at::empty({x.size(0), weight.outer()},
                       x.options().dtype(bias.defined() ? accumulate_dtype(x) : type));
  weight_product_out(y, {x, type}, weight.matrix(0));
  return bias.defined() ? y.add_(bias).to(type) : y;
}

void add_linear(Tensor& sum, const Tensor& x, const Weight& weight) {
  RECORD_USER_SCOPE("projections");
  TORCH_CHECK(!at::GradMode::is_enabled() && sum.is_cpu() && sum.scalar_type() == at::kFloat &&
                  weight.count() == 1 && x.dim() == 2 && weight.inner() == x.size(1) &&
                  sum.size(0) == x.size(0) && sum.size(1) == weight.outer(),
              "sum ", sum.sizes(), ", x ", x.sizes(), ", weight [", weight.outer(), ", ",
              weight.inner(), "]");
  if (x.size(0) <= kMaxSkinnyRows) {
    Tensor y = at::empty_like(sum);
    weight_product_out(y, {x, x.scalar_type()}, weight.matrix(0));
    sum.add_(y);
    return;
  }
  weight_product_out(sum, {x, x.scalar_type()}, weight.matrix(0), /*is_mapped=*/false,
                     /*accumulate=*/true);
}

Tensor linear_to_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {x.scalar_type(), accumulate_dtype(x)});
}

Tensor linear_in_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {accumulate_dtype(x), accumulate_dtype(x), /*allow_tf32=*/false});
}

bool has_grouped_mm(const Tensor& rows) {
  return rows.is_cuda() && cuda_functions().gpu_has_grouped_mm(rows.get_device());
}

std::vector<int64_t> read_rows_per_expert(const Tensor& ends) {
  const Tensor host = ends.to(at::kCPU, at::kLong);
  const auto* end = host.const_data_ptr<int64_t>();
  std::vector<int64_t> rows(static_cast<size_t>(host.numel()));
  std::adjacent_difference(end, end + host.numel(), rows.begin());
  return rows;
}

Tensor grouped_matmul(const Tensor& in, const Weight& weights, int64_t total,
                      const std::vector<int64_t>& rows_per_expert) {
  return product_per_expert(
      in, weights.outer(), total, rows_per_expert,
      [&](int64_t expert, const Tensor& rows, Tensor& out) {
        weight_product_out(out, {rows, in.scalar_type()}, weights.matrix(expert));
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
                              operand_product_out(out, {rows, type}, {weights[expert], type});
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
  Tensor gradient = is_new ? at::empty(weights.sizes(), weights.options()) : sum;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (is_new && counts[expert] == 0) {
      gradient[static_cast<int64_t>(expert)].zero_();
    }
  }
  for_each_expert(counts, [&](int64_t expert, int64_t first, int64_t count) {
    Tensor target = gradient[expert];
    const Tensor rows = left.narrow(0, first, count).t();
    operand_product_out(target, {rows, type}, {right.narrow(0, first, count), type}, !is_new);
  });
  return is_new ? gradient : Tensor();
}

bool use_per_expert_gradients(const Tensor& weights) {
  constexpr int64_t kLargeExpert = 1 << 21;  // elements; widening takes 6 us, about one launch
  return weights.is_cuda() && weights.scalar_type() == at::kFloat &&
         weights.size(1) * weights.size(2) >= kLargeExpert;
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
  if (!is_one_tensor()) {
    return matrices->at(static_cast<size_t>(index));
  }
  return {tensor.dim() == 3 ? tensor[index] : tensor};
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
