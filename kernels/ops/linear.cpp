// One autograd node a product, so that what it keeps is the input in its own type, and a weight's
// gradient lies as the weight does.

#include "kernels/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/skinny_gemm.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A few columns of f32 out of x as it is: widening x first would write and read it once more.
bool takes_router_kernel(const Tensor& x, const Tensor& weight, at::ScalarType operands) {
  constexpr int64_t kMostColumns = 64;
  return x.is_cuda() && weight.device() == x.device() && operands == at::kFloat &&
         weight.scalar_type() == at::kFloat &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
         weight.size(0) <= kMostColumns;
}

Tensor product_of(const Operand& left, const Operand& right, at::ScalarType out) {
  Tensor result =
      at::empty({left.tensor.size(0), right.tensor.size(1)}, left.tensor.options().dtype(out));
  operand_product_out(result, left, right);
  return result;
}

bool is_f32_or_bf16(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

// The right operand of a product: matrices [K, N_i] side by side, as one [K, N].
struct SideBySide {
  at::ArrayRef<Tensor> matrices;
  at::ScalarType type;
  bool is_mapped = false;

  template <typename Is>
  bool all(Is is) const {
    return std::all_of(matrices.begin(), matrices.end(), is);
  }
  std::vector<ColumnBlock> blocks() const {
    std::vector<ColumnBlock> views;
    for (const Tensor& matrix : matrices) {
      views.push_back({view_of(matrix, type), matrix.size(1)});
    }
    return views;
  }
};

// Whether kernels/cpu/gemm.h makes it, which on the CPU is whatever is large enough. The whole
// product decides, so that it is the same sum however the right operand lies.
bool is_for_gemm(const Tensor& out, const Operand& left, const SideBySide& right, bool accumulate) {
  const auto is_read = [&](const Tensor& matrix) {
    return is_f32_or_bf16(matrix) ||
           (matrix.scalar_type() == at::kHalf && right.type == at::kFloat);
  };
  return out.is_cpu() && is_f32_or_bf16(out) && is_f32_or_bf16(left.tensor) && right.all(is_read) &&
         out.stride(1) == 1 && !(accumulate && out.scalar_type() == at::kBFloat16) &&
         serves_gemm({out.size(0), out.size(1), left.tensor.size(1)});
}

// Computes a product of few rows with a matrix of 16 bits, or with a mapped one of f32, which no
// training reads (kernels/cpu/skinny_gemm.h); false where it is not one.
bool try_skinny_gemm(Tensor& out, const Operand& left, const SideBySide& right) {
  const auto is_read = [&](const Tensor& matrix) {
    return matrix.scalar_type() == at::kBFloat16 ||
           (right.type == at::kFloat && (matrix.scalar_type() == at::kHalf ||
                                         (matrix.scalar_type() == at::kFloat && right.is_mapped)));
  };
  if (!out.is_cpu() || out.size(0) > kMostSkinnyRows || !right.all(is_read) ||
      !is_f32_or_bf16(left.tensor)) {
    return false;
  }
  const GemmShape shape{out.size(0), out.size(1), left.tensor.size(1)};
  const std::vector<ColumnBlock> b = right.blocks();
  if (!std::all_of(b.begin(), b.end(),
                   [&](const ColumnBlock& block) { return serves_skinny_gemm(shape, block.b); })) {
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

void libtorch_product_out(Tensor& out, const Operand& left, const Operand& right, bool accumulate) {
  const Tensor a = operand(left.tensor, left.type), b = operand(right.tensor, right.type);
  if (a.scalar_type() == out.scalar_type()) {
    product_out(out, a, b, accumulate);
  } else if (accumulate && out.is_cuda() && out.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b, at::kFloat);  // adds to what is there as it writes
  } else if (accumulate) {
    out.add_(product_to_f32(a, b));
  } else if (out.scalar_type() == at::kFloat) {
    at::mm_out(out, a, b, at::kFloat);
  } else {
    out.copy_(product(a, b));
  }
}

void side_by_side_product_out(Tensor& out, const Operand& left, const SideBySide& right,
                              bool accumulate) {
  if (!accumulate && try_skinny_gemm(out, left, right)) {
    return;
  }
  if (is_for_gemm(out, left, right, accumulate)) {
    const GemmShape shape{out.size(0), out.size(1), left.tensor.size(1)};
    const MatrixView a = view_of(left.tensor, left.type);
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
    // One by one, those of 16 bits among others of f32 may be skinny.
    if (right.matrices.size() == 1 || accumulate ||
        !try_skinny_gemm(columns, left, {matrix, right.type, right.is_mapped})) {
      libtorch_product_out(columns, left, {matrix, right.type}, accumulate);
    }
    first += matrix.size(1);
  }
}

// f64 where x is, for gradient checks.
at::ScalarType f32_beside(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// While it lives, products on GPUs in f32 are in f32 although TF32 is allowed. LibTorch's switch is
// one for the process: where ranks are threads, others' products may be in f32 meanwhile.
class WithoutTf32 {
 public:
  explicit WithoutTf32(bool is_wanted)
      : switches_(is_wanted && at::globalContext().allowTF32CuBLAS()) {
    if (switches_) {
      at::globalContext().setAllowTF32CuBLAS(false);
    }
  }
  ~WithoutTf32() {
    if (switches_) {
      at::globalContext().setAllowTF32CuBLAS(true);
    }
  }
  WithoutTf32(const WithoutTf32&) = delete;
  WithoutTf32& operator=(const WithoutTf32&) = delete;

 private:
  bool switches_;
};

// How a product is computed: its operands, y, and whether TF32 will do for f32.
struct LinearTypes {
  at::ScalarType operands, out;
  bool takes_tf32 = true;
};

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const LinearTypes& types) {
    RECORD_USER_SCOPE("projections");
    const auto [operands, out, takes_tf32] = types;
    const WithoutTf32 in_f32(!takes_tf32);
    context->saved_data["operands"] = static_cast<int64_t>(operands);
    context->saved_data["takes_tf32"] = takes_tf32;
    context->saved_data["has_bias"] = bias.has_value();
    if (!bias && takes_router_kernel(x, weight, operands)) {
      context->save_for_backward({x, weight, weight});
      static const Operation<decltype(router_logits_on<router_logits_cuda>)> operation(
          "moe::router_logits");
      return operation(x, weight);
    }
    const Tensor by = weight_operand(weight, operands);
    context->save_for_backward({x, weight, by});
    if (bias && x.is_cuda()) {
      const Tensor left = operand(x, operands), right = operand(by, operands).t();
      return at::addmm(bias->to(left.scalar_type()), left, right).to(out);
    }
    if (bias) {
      return product_of({x, operands}, {by.t(), operands}, f32_beside(x)).add_(*bias).to(out);
    }
    return product_of({x, operands}, {by.t(), operands}, out);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto type = static_cast<at::ScalarType>(context->saved_data["operands"].toInt());
    const WithoutTf32 in_f32(!context->saved_data["takes_tf32"].toBool());
    const Tensor& grad = gradients[0];
    const bool has_bias = context->saved_data["has_bias"].toBool();
    variable_list result(4);
    if (!has_bias && takes_router_kernel(x, weight, type)) {
      static const Operation<decltype(router_logits_backward_on<router_logits_backward_cuda>)>
          operation("moe::router_logits_backward");
      const auto [grad_x, grad_weight] =
          operation(grad, x, weight, context->needs_input_grad(0), context->needs_input_grad(1));
      return {grad_x, grad_weight, Tensor(), Tensor()};
    }
    if (context->needs_input_grad(0)) {
      result[0] = product_of({grad, type}, {saved[2], type}, x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      if (Tensor sum = gradient_to_add_to(weight); sum.defined()) {
        operand_product_out(sum, {grad.t(), type}, {x, type}, /*accumulate=*/true);
      } else {
        result[1] = product_of({grad.t(), type}, {x, type}, weight.scalar_type());
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
  if (!at::GradMode::is_enabled() && x.is_cpu() && !bias) {  // no node that nobody asks again
    RECORD_USER_SCOPE("projections");
    return product_of({x, types.operands}, {weight.t(), types.operands}, types.out);
  }
  return Linear::apply(x, weight, bias, types);
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

Tensor product_to_f32(const Tensor& left, const Tensor& right) {
  return left.scalar_type() == at::kBFloat16 ? at::mm(left, right, at::kFloat)
                                             : product(left, right);
}

void operand_product_out(Tensor& out, const Operand& left, const Operand& right, bool accumulate) {
  TORCH_CHECK(left.tensor.size(1) == right.tensor.size(0) && out.size(0) == left.tensor.size(0) &&
              out.size(1) == right.tensor.size(1));
  side_by_side_product_out(out, left, {right.tensor, right.type}, accumulate);
}

void weight_product_out(Tensor& out, const Operand& left, const RowBlocks& rows) {
  std::vector<Tensor> columns;
  int64_t outer = 0;
  for (const Tensor& block : rows) {
    TORCH_CHECK(left.tensor.size(1) == block.size(1), "left ", left.tensor.sizes(), ", rows ",
                block.sizes());
    columns.push_back(block.t());
    outer += block.size(0);
  }
  TORCH_CHECK(out.size(0) == left.tensor.size(0) && out.size(1) == outer);
  side_by_side_product_out(out, left, {columns, left.type, /*is_mapped=*/true},
                           /*accumulate=*/false);
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
                       x.options().dtype(bias.defined() ? f32_beside(x) : type));
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
  if (x.size(0) <= kMostSkinnyRows) {
    Tensor y = at::empty_like(sum);
    weight_product_out(y, {x, x.scalar_type()}, weight.matrix(0));
    sum.add_(y);
    return;
  }
  std::vector<Tensor> columns;
  for (const Tensor& block : weight.matrix(0)) {
    columns.push_back(block.t());
  }
  side_by_side_product_out(sum, {x, x.scalar_type()}, {columns, x.scalar_type()},
                           /*accumulate=*/true);
}

Tensor linear_to_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {x.scalar_type(), f32_beside(x)});
}

Tensor linear_in_f32(const Tensor& x, const Tensor& weight) {
  return apply(x, weight, {}, {f32_beside(x), f32_beside(x), /*takes_tf32=*/false});
}

}  // namespace moe::kernels
