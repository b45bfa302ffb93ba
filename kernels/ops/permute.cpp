#include "kernels/ops/permute.h"

#include <ATen/record_function.h>

#include "kernels/ops/operations.h"
#include "kernels/ops/permutation.h"

namespace moe::kernels {

namespace {

Tensor gather(const Tensor& x, const Permutation& permutation) {
  return call<"moe::permute", decltype(permute_on<permute_cpu>)>(
      x, permutation.token, permutation.columns, permutation.row_of_token, permutation.used);
}

// `weight` [R] and `residual` [T, D] may be undefined.
Tensor scatter(const Tensor& rows, const Permutation& permutation, const Tensor& weight = {},
               const OptionalTensor& residual = {}) {
  return call<"moe::unpermute", decltype(unpermute_on<unpermute_cpu>)>(
      rows, permutation.token, permutation.tokens, permutation.columns, weight, residual,
      permutation.row_of_token, permutation.used);
}

// kGathers: permute(), else unpermute() without weights. Each is the gradient of the other.
template <bool kGathers>
struct PermuteNode : torch::autograd::Function<PermuteNode<kGathers>> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Permutation& permutation) {
    save_value(context, permutation);
    if constexpr (kGathers) {
      RECORD_USER_SCOPE("permute");
      return gather(x, permutation);
    } else {
      return scatter(x, permutation);
    }
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto permutation = saved_value<Permutation>(context);
    return {kGathers ? scatter(gradients[0], permutation) : gather(gradients[0], permutation),
            Tensor()};
  }
};

struct WeightedUnpermute : torch::autograd::Function<WeightedUnpermute> {
  static Tensor forward(AutogradContext* context, const Tensor& rows_in, const Tensor& weight_in,
                        const std::optional<Tensor>& residual, const Permutation& permutation) {
    RECORD_USER_SCOPE("combine");
    const Tensor rows = rows_in.contiguous(), weight = weight_in.contiguous();
    context->save_for_backward({rows, weight});
    save_value(context, permutation);
    context->saved_data["has_residual"] = residual.has_value();
    return scatter(rows, permutation, weight, residual);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto permutation = saved_value<Permutation>(context);
    const auto [grad_rows, grad_weight] =
        call<"moe::unpermute_backward", decltype(unpermute_backward_on<unpermute_backward_cpu>)>(
            gradients[0], saved[0], saved[1], permutation.token, permutation.used);
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {grad_rows, grad_weight, has_residual ? gradients[0] : Tensor(), Tensor()};
  }
};

}  // namespace

Tensor permute(const Tensor& x, const Permutation& permutation) {
  TORCH_CHECK(
      x.dim() == 2 && x.size(0) == permutation.tokens && x.device() == permutation.token.device(),
      "x ", x.sizes(), " by a permutation of ", permutation.tokens, " tokens");
  return PermuteNode<true>::apply(x, permutation);
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation) {
  return PermuteNode<false>::apply(rows, permutation);
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation, const Tensor& weight,
                 const Tensor& residual) {
  const auto added = residual.defined() ? std::optional(residual) : std::nullopt;
  return WeightedUnpermute::apply(rows, weight, added, permutation);
}

Tensor unpermute(const Tensor& rows, const Permutation& permutation, const Tensor& weight) {
  return unpermute(rows, permutation, weight, {});
}

Permutation make_permutation(const Tensor& token, const Tensor& choice, int64_t tokens,
                             int64_t choices) {
  TORCH_CHECK(token.dim() == 1 && token.scalar_type() == at::kLong &&
                  choice.sizes() == token.sizes() && tokens * choices <= INT32_MAX,
              "token ", token.toString(), token.sizes(), ", choice ", choice.sizes(), ", ", tokens,
              " tokens of ", choices, " choices");
  return {token.contiguous(),
          call<"moe::rows_of_tokens", decltype(rows_of_tokens)>(token, choice, tokens, choices),
          {},
          tokens,
          choices};
}

Permutation make_permutation(const Tensor& index, int64_t tokens) {
  return make_permutation(index, at::zeros_like(index), tokens, 1);
}

SegmentedRows segment_rows(const Tensor& token, const Tensor& expert, const Tensor& choice,
                           const Tensor& tokens_per_expert, int64_t tokens, int64_t choices) {
  const auto [row_token, row_of_token, row_of_plan, ends] =
      call<"moe::segment_rows", decltype(segment_rows_on<segment_rows_cuda>)>(
          token, expert, choice, tokens_per_expert, tokens, choices);
  return {{row_token, row_of_token, ends.narrow(0, ends.size(0) - 1, 1), tokens, choices},
          row_of_plan,
          ends};
}

}  // namespace moe::kernels
