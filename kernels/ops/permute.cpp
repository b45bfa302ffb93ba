#include "kernels/ops/permute.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/permutation.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

PermuteDtype dtype_of(const Tensor& rows) {
  const auto type = rows.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || (type == at::kDouble && rows.is_cpu()),
              "rows are moved in f32 and bf16, and in f64 on the CPU; these are ", rows.toString());
  return type == at::kFloat      ? PermuteDtype::kF32
         : type == at::kBFloat16 ? PermuteDtype::kBF16
                                 : PermuteDtype::kF64;
}

PermuteShape shape_of(const Permutation& permutation, int64_t width) {
  return {permutation.tokens, permutation.token.size(0), width, permutation.columns};
}

const int32_t* pointer_to(const Tensor& i32) {
  return i32.defined() ? i32.const_data_ptr<int32_t>() : nullptr;
}

Tensor gather(const Tensor& given, const Permutation& permutation) {
  const Tensor x = given.contiguous();
  const Tensor rows = at::empty({permutation.token.size(0), x.size(1)}, x.options());
  const PermuteArgs args{permutation.token.const_data_ptr<int64_t>(),
                         pointer_to(permutation.used),
                         shape_of(permutation, x.size(1)),
                         x.const_data_ptr(),
                         rows.mutable_data_ptr(),
                         dtype_of(x)};
  if (x.is_cuda()) {
    cuda_functions().permute(args, current_stream(x));
  } else {
    permute_cpu(args);
  }
  return rows;
}

// `weight` [R] may be undefined: every one is 1. `residual` [T, D] f32 on a GPU alone.
Tensor scatter(const Tensor& given, const Permutation& permutation, const Tensor& weight,
               const Tensor& given_residual = {}) {
  const Tensor rows = given.contiguous();
  const Tensor residual = given_residual.defined() ? given_residual.contiguous() : Tensor();
  const Tensor y = at::empty({permutation.tokens, rows.size(1)},
                             weight.defined() ? weight.options() : rows.options());
  const UnpermuteArgs args{permutation.token.const_data_ptr<int64_t>(),
                           pointer_to(permutation.row_of_token),
                           shape_of(permutation, rows.size(1)),
                           rows.const_data_ptr(),
                           weight.defined(),
                           weight.defined() ? weight.const_data_ptr() : nullptr,
                           y.mutable_data_ptr(),
                           dtype_of(rows),
                           residual.defined() ? residual.const_data_ptr<float>() : nullptr};
  if (rows.is_cuda()) {
    cuda_functions().unpermute(args, current_stream(rows));
  } else {
    unpermute_cpu(args);
  }
  return y;
}

// A permutation is kept between forward and backward as its tensors and two numbers.
variable_list tensors_of(const Permutation& permutation) {
  return {permutation.token, permutation.row_of_token, permutation.used};
}

void keep_sizes(AutogradContext* context, const Permutation& permutation) {
  context->saved_data["tokens"] = permutation.tokens;
  context->saved_data["columns"] = permutation.columns;
}

Permutation saved_permutation(AutogradContext* context, const variable_list& saved) {
  return {saved[0], saved[1], saved[2], context->saved_data["tokens"].toInt(),
          context->saved_data["columns"].toInt()};
}

struct Permute : torch::autograd::Function<Permute> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Permutation& permutation) {
    RECORD_USER_SCOPE("permute");
    context->save_for_backward(tensors_of(permutation));
    keep_sizes(context, permutation);
    return gather(x, permutation);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Permutation permutation = saved_permutation(context, context->get_saved_variables());
    return {scatter(gradients[0], permutation, {}), Tensor()};
  }
};

struct Unpermute : torch::autograd::Function<Unpermute> {
  static Tensor forward(AutogradContext* context, const Tensor& rows,
                        const Permutation& permutation) {
    context->save_for_backward(tensors_of(permutation));
    keep_sizes(context, permutation);
    return scatter(rows, permutation, {});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Permutation permutation = saved_permutation(context, context->get_saved_variables());
    return {gather(gradients[0], permutation), Tensor()};
  }
};

struct WeightedUnpermute : torch::autograd::Function<WeightedUnpermute> {
  static Tensor forward(AutogradContext* context, const Tensor& given, const Tensor& given_weight,
                        const std::optional<Tensor>& residual, const Permutation& permutation) {
    RECORD_USER_SCOPE("combine");
    const Tensor rows = given.contiguous(), weight = given_weight.contiguous();
    variable_list saved = tensors_of(permutation);
    saved.insert(saved.end(), {rows, weight});
    context->save_for_backward(saved);
    keep_sizes(context, permutation);
    context->saved_data["has_residual"] = residual.has_value();
    return scatter(rows, permutation, weight, residual ? *residual : Tensor());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Permutation permutation = saved_permutation(context, saved);
    const Tensor &rows = saved[3], &weight = saved[4], grad = gradients[0].contiguous();
    const Tensor grad_rows = at::empty_like(rows), grad_weight = at::empty_like(weight);
    const UnpermuteBackwardArgs args{permutation.token.const_data_ptr<int64_t>(),
                                     pointer_to(permutation.used),
                                     shape_of(permutation, rows.size(1)),
                                     rows.const_data_ptr(),
                                     weight.const_data_ptr(),
                                     grad.const_data_ptr(),
                                     grad_rows.mutable_data_ptr(),
                                     grad_weight.mutable_data_ptr(),
                                     dtype_of(rows)};
    if (rows.is_cuda()) {
      cuda_functions().unpermute_backward(args, current_stream(rows));
    } else {
      unpermute_backward_cpu(args);
    }
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {grad_rows, grad_weight, has_residual ? gradients[0] : Tensor(), Tensor()};
  }
};

void check_rows(const Tensor& rows, const Permutation& permutation) {
  TORCH_CHECK(rows.dim() == 2 && rows.size(0) == permutation.token.size(0) &&
                  rows.device() == permutation.token.device(),
              "rows ", rows.sizes(), " by a permutation of ", permutation.token.size(0));
}

}  // namespace

Tensor permute(const Tensor& x, const Permutation& permutation) {
  TORCH_CHECK(
      x.dim() == 2 && x.size(0) == permutation.tokens && x.device() == permutation.token.device(),
      "x ", x.sizes(), " by a permutation of ", permutation.tokens, " tokens");
  return Permute::apply(x, permutation);
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation) {
  check_rows(rows, permutation);
  return Unpermute::apply(rows, permutation);
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation, const Tensor& weight,
                 const Tensor& residual) {
  check_rows(rows, permutation);
  const bool is_wide = rows.scalar_type() == at::kDouble;
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == rows.size(0) &&
                  weight.scalar_type() == (is_wide ? at::kDouble : at::kFloat) &&
                  weight.device() == rows.device(),
              "rows ", rows.toString(), rows.sizes(), ", weight ", weight.toString(),
              weight.sizes());
  TORCH_CHECK(!residual.defined() ||
                  (residual.dim() == 2 && residual.size(0) == permutation.tokens &&
                   residual.size(1) == rows.size(1) && residual.device() == rows.device() &&
                   residual.scalar_type() == weight.scalar_type()),
              "rows ", rows.sizes(), ", residual ", residual.toString());
  const bool is_fused = rows.is_cuda() && residual.defined();
  const auto fused = is_fused ? std::optional(residual) : std::nullopt;
  const Tensor y = WeightedUnpermute::apply(rows, weight, fused, permutation);
  return residual.defined() && !is_fused ? residual + y : y;
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation, const Tensor& weight) {
  return unpermute(rows, permutation, weight, {});
}

Permutation permutation_of(const Tensor& token, const Tensor& choice, int64_t tokens,
                           int64_t choices) {
  TORCH_CHECK(token.dim() == 1 && token.scalar_type() == at::kLong &&
                  choice.sizes() == token.sizes() && tokens * choices <= INT32_MAX,
              "token ", token.toString(), token.sizes(), ", choice ", choice.sizes(), ", ", tokens,
              " tokens of ", choices, " choices");
  Permutation permutation{token.contiguous(), {}, {}, tokens, choices};
  if (token.is_cuda()) {
    const auto i32 = token.options().dtype(at::kInt);
    permutation.row_of_token =
        at::full({tokens * choices}, -1, i32)
            .index_copy_(0, token * choices + choice, at::arange(token.size(0), i32))
            .view({tokens, choices});
  }
  return permutation;
}

Permutation permutation_of(const Tensor& index, int64_t tokens) {
  return permutation_of(index, at::zeros_like(index), tokens, 1);
}

SegmentedRows segment_rows(const Tensor& token, const Tensor& expert, const Tensor& choice,
                           const Tensor& tokens_per_expert, int64_t tokens, int64_t choices) {
  const int64_t experts = tokens_per_expert.size(0), plan_rows = token.size(0);
  const int64_t rows = segmented_rows(plan_rows, experts);
  TORCH_CHECK(token.is_cuda(), "rows are laid out in segments on a GPU, the plan is on ",
              token.device());
  TORCH_CHECK(experts > 0 && tokens * choices <= INT32_MAX && rows <= INT32_MAX, tokens,
              " tokens with ", choices, " choices each, ", plan_rows, " rows");
  const Tensor lists[] = {token.contiguous(), expert.contiguous(), choice.contiguous(),
                          tokens_per_expert.contiguous()};
  const auto i32 = token.options().dtype(at::kInt);
  const SegmentedRows out{
      {at::empty({rows}, token.options()), at::empty({tokens, choices}, i32), {}, tokens, choices},
      at::empty({plan_rows}, token.options()),
      at::empty({experts}, i32)};
  cuda_functions().segment_rows(
      {lists[0].const_data_ptr<int64_t>(), lists[1].const_data_ptr<int64_t>(),
       lists[2].const_data_ptr<int64_t>(), lists[3].const_data_ptr<int64_t>(), tokens, choices,
       experts, plan_rows, out.permutation.token.data_ptr<int64_t>(),
       out.permutation.row_of_token.data_ptr<int32_t>(), out.row_of_plan.data_ptr<int64_t>(),
       out.ends.data_ptr<int32_t>()},
      current_stream(token));
  SegmentedRows result = out;
  result.permutation.used = out.ends.narrow(0, experts - 1, 1);
  return result;
}

}  // namespace moe::kernels
