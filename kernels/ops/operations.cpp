// Registers the operations moe::* with PyTorch's dispatcher: schemas, CPU kernels and autograd.
// Python loads them with torch.ops.load_library("libmoe_ops.so"), in the LibTorch version that this
// library is linked with.

#include "kernels/ops/operations.h"

#include <torch/library.h>

#include "kernels/cpu/vector_math.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/permutation.h"

namespace moe::kernels {

namespace {

int64_t argmax_by_operations(const Tensor& logits) { return logits.argmax().item<int64_t>(); }

// Returns the first of the largest logits, or 0 if all are NaN, in a tenth of the time of
// at::argmax.
int64_t argmax_cpu(const Tensor& logits) {
  if (!logits.is_contiguous() || logits.scalar_type() != at::kFloat) {
    return argmax_by_operations(logits);
  }
  const auto* first = logits.const_data_ptr<float>();
  const float* end = first + logits.numel();
  const float* argmax = std::find(first, end, row_max(first, logits.numel()));
  return argmax == end ? 0 : argmax - first;
}

Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

}  // namespace

// The headers of the operations describe the parameters. On a GPU, unpermute and the gradient of
// permute require row_of_token.
TORCH_LIBRARY(moe, library) {
  for (const char* schema : {
           "permute(Tensor x, Tensor token, int columns, Tensor? row_of_token=None, Tensor? "
           "used=None) -> Tensor",
           "rows_of_tokens(Tensor token, Tensor choice, int tokens, int choices) -> Tensor",
           "unpermute(Tensor rows, Tensor token, int tokens, int columns, Tensor? weight=None, "
           "Tensor? residual=None, Tensor? row_of_token=None, Tensor? used=None) -> Tensor",
           "unpermute_backward(Tensor grad, Tensor rows, Tensor weight, Tensor token, Tensor? "
           "used=None) -> (Tensor, Tensor)",
           "segment_rows(Tensor token, Tensor expert, Tensor choice, Tensor tokens_per_expert, int "
           "tokens, int choices) -> (Tensor, Tensor, Tensor, Tensor)",
           "swiglu(Tensor hidden, Tensor? used=None) -> Tensor",
           "swiglu_backward(Tensor grad_out, Tensor hidden, Tensor? used=None) -> Tensor",
           "swiglu_backward_(Tensor(a!) grad_out, Tensor hidden, Tensor? used=None) -> Tensor",
           "logsumexp_argmax(Tensor logits) -> (Tensor, Tensor)",
           "cross_entropy_(Tensor(a!) logits, Tensor target, float scale, Tensor(b!) loss, bool "
           "in_bf16) -> ()",
           "stochastic_round(Tensor input, Tensor(a!) out, int key, int first) -> ()",
           "adamw_(Tensor(e!) gradient, Tensor(a!) master, Tensor(b!) mean, Tensor(c!) square, "
           "Tensor(d!)? weight, Tensor? gradient_scale, float lr, float beta1, float beta2, float "
           "eps, float weight_decay, int t) -> ()",
           "rms_norm(Tensor x, Tensor weight, float epsilon, bool to_bf16=False, Tensor? "
           "added=None) -> (Tensor, Tensor, Tensor)",
           "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor scale, Tensor? "
           "grad_sum=None) -> (Tensor, Tensor, Tensor)",
           "rope(Tensor[] parts, Tensor cosine, Tensor sine, Tensor position, int rotated, bool "
           "backwards, Tensor(a!)? out=None) -> Tensor",
           "operand(Tensor input, ScalarType type) -> Tensor",
           "weight_operand(Tensor weight, ScalarType type) -> Tensor",
           "matmul_out(Tensor(a!) out, Tensor left, Tensor[] right, ScalarType type, bool "
           "is_mapped, bool accumulate) -> ()",
           "biased_linear(Tensor x, Tensor weight, Tensor bias, ScalarType type, ScalarType out) "
           "-> Tensor",
           "has_grouped_mm(Tensor rows) -> bool",
           "can_use_ends(Tensor rows) -> bool",
           "causal_attention(Tensor qkv, Tensor cosine, Tensor sine, int[] heads, int[] lengths) "
           "-> (Tensor, Tensor)",
           "argmax(Tensor logits) -> int",
           "score_type(Tensor x) -> ScalarType",
           "fits_top_k_plan(Tensor logits, bool has_bias) -> bool",
           "router_logits(Tensor x, Tensor weight) -> Tensor",
           "router_logits_backward(Tensor grad, Tensor x, Tensor weight, bool needs_x_grad, bool "
           "needs_weight_grad) -> (Tensor, Tensor)",
           "expert_order(Tensor logits) -> Tensor",
           "router_choices(Tensor logits, Tensor source_rank, int ranks, int choices) -> (Tensor, "
           "Tensor, Tensor, Tensor)",
           "top_k_plan(Tensor scores, Tensor choice, Tensor local_choice, Tensor source_rank, "
           "Tensor requested, Tensor capacity, int k, bool fill, bool rectify, bool by_score, int "
           "rows_max, int overflow_max) -> Tensor[]",
           "plan_counts(Tensor logits, Tensor scores, Tensor[] plan, int ranks, int k, bool "
           "rectifies, bool is_dropless) -> (Tensor, Tensor)",
           "plan_gate_weights(Tensor logits, Tensor count, Tensor by_logit, Tensor[] plan, int "
           "ranks, int k, bool normalise, bool straight_through, int lb_choices, int ranks_in_use) "
           "-> Tensor[]",
           "plan_gate_weights_backward(Tensor? grad_weights, Tensor? grad_combine, Tensor? "
           "grad_load_balance, Tensor? grad_z, Tensor logits, Tensor count, Tensor combine, Tensor "
           "chosen, Tensor[] plan, int ranks, int k, bool normalise, bool straight_through, int "
           "lb_choices, int ranks_in_use) -> Tensor",
       }) {
    library.def(schema);
  }
  library.def(
      "grouped_swiglu(Tensor rows, Tensor gate_up, Tensor down, int[] rows_per_expert) -> Tensor",
      [](const Tensor& rows, const Tensor& gate_up, const Tensor& down, at::IntArrayRef counts) {
        return grouped_swiglu(rows, gate_up, down, counts.vec());
      });
  library.def(
      "grouped_swiglu.ends(Tensor rows, Tensor gate_up, Tensor down, Tensor ends) -> Tensor",
      [](const Tensor& rows, const Tensor& gate_up, const Tensor& down, const Tensor& ends) {
        return grouped_swiglu(rows, gate_up, down, ends);
      });
}

TORCH_LIBRARY_IMPL(moe, CPU, library) {
  MOE_REGISTER_KERNELS(library, cpu);
  library.impl("rows_of_tokens",
               [](const Tensor&, const Tensor&, int64_t, int64_t) { return Tensor(); });
  library.impl("rope", &rope_by_operations);
  library.impl("expert_order", &expert_order_on<expert_order_cpu>);
  library.impl("fits_top_k_plan", [](const Tensor&, bool) { return true; });
  library.impl("argmax", &argmax_cpu);
  library.impl("score_type", [](const Tensor& x) {  // LibTorch has no fast products in bf16
    return x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
  });
}

// Devices that have no kernel of their own for an operation.
TORCH_LIBRARY_IMPL(moe, CompositeExplicitAutograd, library) {
  library.impl("rows_of_tokens", &rows_of_tokens);
  library.impl("expert_order", &expert_order_by_operations);
  library.impl("argmax", &argmax_by_operations);
  library.impl("score_type", [](const Tensor& x) { return x.scalar_type(); });
  library.impl("fits_top_k_plan", [](const Tensor& logits, bool has_bias) {
    return !has_bias && logits.size(1) <= kMaxRouterExperts;
  });
}

TORCH_LIBRARY_IMPL(moe, Autograd, library) {
  library.impl("permute", [](const Tensor& x, const Tensor& token, int64_t columns,
                             const OptionalTensor& row_of_token, const OptionalTensor& used) {
    return permute(x, {token, or_undefined(row_of_token), or_undefined(used), x.size(0), columns});
  });
  library.impl(
      "unpermute", [](const Tensor& rows, const Tensor& token, int64_t tokens, int64_t columns,
                      const OptionalTensor& weight, const OptionalTensor& residual,
                      const OptionalTensor& row_of_token, const OptionalTensor& used) {
        TORCH_CHECK(has_tensor(weight) || !has_tensor(residual), "a residual without weights");
        const Permutation permutation{token, or_undefined(row_of_token), or_undefined(used), tokens,
                                      columns};
        return has_tensor(weight) ? unpermute(rows, permutation, *weight, or_undefined(residual))
                                  : unpermute(rows, permutation);
      });
  library.impl("swiglu", [](const Tensor& hidden, const OptionalTensor& used) {
    TORCH_CHECK(!has_tensor(used), "moe::swiglu is not differentiable with `used`");
    return swiglu(hidden);
  });
}

}  // namespace moe::kernels
