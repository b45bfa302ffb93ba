#pragma once
// Operations moe::* of PyTorch's dispatcher (schemas in operations.cpp) as functions of tensors.
// Each function checks its tensors, allocates the results and runs its template parameter, a kernel
// on plain memory. libmoe_ops.so registers the kernels of kernels/cpu, libmoe_cuda.so those of
// kernels/cuda. C++ callers use the headers of the operations (permute.h, ...) or call(). f64
// (gradient checks) is computed by LibTorch.

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/plan_gate_weights.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;  // an undefined tensor counts as absent

// Name of an operation as a template argument: "moe::permute".
template <size_t kSize>
struct OperationName {
  constexpr OperationName(const char (&name)[kSize]) {  // NOLINT: implicit conversion
    std::copy_n(name, kSize, text);
  }
  char text[kSize] = {};
};

// Calls the operation, whose C++ function type is `Function`. Does not record gradients.
template <OperationName kName, typename Function, typename... Arguments>
auto call(Arguments&&... arguments) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName.text, "").template typed<Function>();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return handle.call(std::forward<Arguments>(arguments)...);
}

// Returns true if a kernel is registered for the operation and `device`.
template <OperationName kName>
bool has_kernel(c10::Device device) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(kName.text, "");
  return handle.hasKernelForDispatchKey(at::TensorOptions(device).computeDispatchKey());
}

// True if kKernel takes a stream after its arguments, as CUDA kernels do.
template <auto kKernel, typename Args>
inline constexpr bool kIsCuda = std::is_invocable_v<decltype(kKernel), const Args&, void*>;

// Runs a kernel; a CUDA kernel on LibTorch's current stream of the device of `on`.
template <auto kKernel, typename Args>
void run(const Tensor& on, const Args& args) {
  if constexpr (kIsCuda<kKernel, Args>) {
    kKernel(args, current_stream_cuda(on.device()));
  } else {
    kKernel(args);
  }
}

// Capsule for a value that an autograd node saves.
template <typename T>
struct SavedValue : torch::CustomClassHolder {
  explicit SavedValue(T saved) : value(std::move(saved)) {}
  T value;
};
template <typename T>
void save_value(AutogradContext* context, const T& value) {
  context->saved_data["value"] =
      c10::IValue::make_capsule(c10::make_intrusive<SavedValue<T>>(value));
}
template <typename T>
T saved_value(AutogradContext* context) {
  return static_cast<const SavedValue<T>&>(*context->saved_data["value"].toCapsule()).value;
}

inline bool has_tensor(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// Data of a contiguous tensor, convertible to the pointer type of a kernel's argument; null if the
// tensor is undefined. Keeps the tensor alive until the kernel has run or is enqueued.
class TensorData {
 public:
  explicit TensorData(Tensor tensor) : tensor_(std::move(tensor)) {}

  template <typename Element>
  operator Element*() const {  // NOLINT: implicit conversion
    if constexpr (std::is_void_v<Element>) {
      return tensor_.defined() ? tensor_.data_ptr() : nullptr;
    } else {
      return tensor_.defined() ? tensor_.data_ptr<std::remove_const_t<Element>>() : nullptr;
    }
  }

 private:
  Tensor tensor_;
};

// Returns the data of `tensor`, copied if not contiguous; null if absent.
inline TensorData input(const OptionalTensor& tensor) {
  return TensorData(has_tensor(tensor) ? tensor->contiguous() : Tensor());
}
// REQUIRES: `tensor` is contiguous or undefined.
inline TensorData output(const Tensor& tensor) { return TensorData(tensor); }

// Returns true for bf16 and false for f32. Throws c10::Error for other dtypes.
inline bool uses_bf16(const Tensor& tensor) {
  const bool is_bf16 = tensor.scalar_type() == at::kBFloat16;
  TORCH_CHECK(is_bf16 || tensor.scalar_type() == at::kFloat, "expected f32 or bf16, got ",
              tensor.toString());
  return is_bf16;
}

// --------------------------------------------------------------------- permute.h

// Returns the token of each row; `tokens` for a row without a token.
inline Tensor token_or_last(const Tensor& token, int64_t tokens) {
  return at::where(token < 0, tokens, token);
}

inline Tensor gather_tokens(const Tensor& x, const Tensor& token) {
  const Tensor zeros = at::zeros({1, x.size(1)}, x.options());
  return at::cat({x, zeros}).index_select(0, token_or_last(token, x.size(0)));
}

// Returns the rows of each token [T, C] i32, -1: none.
inline Tensor rows_of_tokens(const Tensor& token, const Tensor& choice, int64_t tokens,
                             int64_t choices) {
  const auto i32 = token.options().dtype(at::kInt);
  return at::full({tokens * choices}, -1, i32)
      .index_copy_(0, token * choices + choice, at::arange(token.size(0), i32))
      .view({tokens, choices});
}

template <auto kKernel>
Tensor permute_on(const Tensor& x, const Tensor& token, int64_t columns,
                  const OptionalTensor& /*row_of_token*/, const OptionalTensor& used) {
  TORCH_CHECK(x.dim() == 2 && token.dim() == 1 && x.device() == token.device(), "x ", x.sizes(),
              ", token ", token.sizes());
  if (x.scalar_type() == at::kDouble) {
    return gather_tokens(x, token);
  }
  const Tensor rows = at::empty({token.size(0), x.size(1)}, x.options());
  const PermuteShape shape{x.size(0), token.size(0), x.size(1), columns};
  run<kKernel>(x,
               PermuteArgs{input(token), input(used), shape, input(x), output(rows), uses_bf16(x)});
  return rows;
}

template <auto kKernel>
Tensor unpermute_on(const Tensor& rows, const Tensor& token, int64_t tokens, int64_t columns,
                    const OptionalTensor& weight, const OptionalTensor& residual,
                    const OptionalTensor& row_of_token, const OptionalTensor& /*used*/) {
  constexpr bool kOnCuda = kIsCuda<kKernel, UnpermuteArgs>;
  const bool is_f64 = rows.scalar_type() == at::kDouble, is_weighted = has_tensor(weight);
  TORCH_CHECK(rows.dim() == 2 && token.dim() == 1 && rows.size(0) == token.size(0) &&
                  rows.device() == token.device() && (!kOnCuda || has_tensor(row_of_token)),
              "rows ", rows.sizes(), " by a permutation of ", token.size(0));
  const auto fits = [&](const Tensor& tensor, at::IntArrayRef sizes) {
    return tensor.sizes() == sizes && tensor.device() == rows.device() &&
           tensor.scalar_type() == (is_f64 ? at::kDouble : at::kFloat);
  };
  TORCH_CHECK(!is_weighted || fits(*weight, token.sizes()), "rows ", rows.toString(), rows.sizes(),
              ", weight ", weight->toString(), weight->sizes());
  TORCH_CHECK(!has_tensor(residual) || (is_weighted && fits(*residual, {tokens, rows.size(1)})),
              "rows ", rows.sizes(), ", residual ", residual->toString());
  Tensor y;
  if (is_f64) {
    y = at::zeros({tokens + 1, rows.size(1)}, rows.options())
            .index_add_(0, token_or_last(token, tokens),
                        is_weighted ? rows * weight->unsqueeze(1) : rows)
            .narrow(0, 0, tokens);
  } else {
    y = at::empty({tokens, rows.size(1)}, is_weighted ? weight->options() : rows.options());
    const PermuteShape shape{tokens, rows.size(0), rows.size(1), columns};
    run<kKernel>(rows,
                 UnpermuteArgs{input(token), input(row_of_token), shape, input(rows), is_weighted,
                               input(weight), output(y), uses_bf16(rows), input(residual)});
  }
  return has_tensor(residual) && (is_f64 || !kOnCuda) ? y.add_(*residual) : y;
}

template <auto kKernel>
std::tuple<Tensor, Tensor> unpermute_backward_on(const Tensor& grad, const Tensor& rows,
                                                 const Tensor& weight, const Tensor& token,
                                                 const OptionalTensor& used) {
  TORCH_CHECK(grad.dim() == 2 && rows.dim() == 2 && grad.size(1) == rows.size(1) &&
                  weight.sizes() == token.sizes() && rows.size(0) == token.size(0) &&
                  grad.scalar_type() == weight.scalar_type(),
              "gradient ", grad.sizes(), ", rows ", rows.sizes(), ", weight ", weight.sizes());
  if (rows.scalar_type() == at::kDouble) {
    const Tensor upstream = gather_tokens(grad, token);
    return {upstream * weight.unsqueeze(1), (rows * upstream).sum(1)};
  }
  const Tensor grad_rows = at::empty(rows.sizes(), rows.options());
  const Tensor grad_weight = at::empty(weight.sizes(), weight.options());
  const PermuteShape shape{grad.size(0), rows.size(0), rows.size(1), /*columns=*/1};
  run<kKernel>(rows, UnpermuteBackwardArgs{input(token), input(used), shape, input(rows),
                                           input(weight), input(grad), output(grad_rows),
                                           output(grad_weight), uses_bf16(rows)});
  return {grad_rows, grad_weight};
}

// Returns the token of each row, the rows of each token, row_of_plan and ends (SegmentedRows).
template <auto kKernel>
std::tuple<Tensor, Tensor, Tensor, Tensor> segment_rows_on(const Tensor& token,
                                                           const Tensor& expert,
                                                           const Tensor& choice,
                                                           const Tensor& tokens_per_expert,
                                                           int64_t tokens, int64_t choices) {
  const int64_t experts = tokens_per_expert.size(0), plan_rows = token.size(0);
  const int64_t rows = segmented_rows(plan_rows, experts);
  TORCH_CHECK(experts > 0 && tokens * choices <= INT32_MAX && rows <= INT32_MAX, tokens,
              " tokens with ", choices, " choices each, ", plan_rows, " rows");
  const auto i32 = token.options().dtype(at::kInt);
  std::tuple out{at::empty({rows}, token.options()), at::empty({tokens, choices}, i32),
                 at::empty({plan_rows}, token.options()), at::empty({experts}, i32)};
  const auto& [row_token, row_of_token, row_of_plan, ends] = out;
  run<kKernel>(token,
               SegmentRowsArgs{input(token), input(expert), input(choice), input(tokens_per_expert),
                               tokens, choices, experts, plan_rows, output(row_token),
                               output(row_of_token), output(row_of_plan), output(ends)});
  return out;
}

// ---------------------------------------------------------------------- swiglu.h

// Returns a pointer to the number of rows to compute, or null for all rows.
inline const int32_t* num_used_rows(const OptionalTensor& used) {
  return has_tensor(used) ? used->const_data_ptr<int32_t>() + used->numel() - 1 : nullptr;
}

template <auto kKernel>
Tensor swiglu_on(const Tensor& hidden, const OptionalTensor& used) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) % 2 == 0, "hidden is ", hidden.sizes());
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  if (hidden.scalar_type() == at::kDouble) {
    return at::silu(hidden.narrow(1, 0, width)).mul_(hidden.narrow(1, width, width));
  }
  Tensor out = at::empty({rows, width}, hidden.options());
  run<kKernel>(hidden, SwigluForwardArgs{input(hidden), output(out), rows, width, uses_bf16(hidden),
                                         num_used_rows(used)});
  return out;
}

// kInPlace: overwrites grad_out, which must be contiguous, with the activation.
template <auto kKernel, bool kInPlace>
Tensor swiglu_backward_on(const Tensor& grad_out, const Tensor& hidden,
                          const OptionalTensor& used) {
  const int64_t rows = hidden.size(0), width = hidden.size(1) / 2;
  TORCH_CHECK(grad_out.dim() == 2 && grad_out.size(0) == rows && grad_out.size(1) == width &&
                  grad_out.scalar_type() == hidden.scalar_type() &&
                  (!kInPlace || grad_out.is_contiguous()),
              "grad_out is ", grad_out.sizes(), " with strides ", grad_out.strides());
  Tensor grad = at::empty(hidden.sizes(), hidden.options());
  if (hidden.scalar_type() == at::kDouble) {
    const Tensor gate = hidden.narrow(1, 0, width), up = hidden.narrow(1, width, width);
    grad.narrow(1, 0, width).copy_(at::silu_backward(at::mul(grad_out, up), gate));
    grad.narrow(1, width, width).copy_(at::mul(grad_out, at::silu(gate)));
    if (kInPlace) {
      grad_out.copy_(at::silu(gate).mul_(up));
    }
    return grad;
  }
  run<kKernel>(hidden, SwigluBackwardArgs{input(grad_out), input(hidden), output(grad), rows, width,
                                          uses_bf16(hidden), num_used_rows(used),
                                          output(kInPlace ? grad_out : Tensor())});
  return grad;
}

// ------------------------------------------------------------------------- loss

// Returns the log-sum-exp [n] f32 and the argmax [n] i64 of each row.
template <auto kKernel>
std::tuple<Tensor, Tensor> logsumexp_argmax_on(const Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.scalar_type() == at::kFloat,
              "logits ", logits.toString(), logits.sizes());
  const Tensor logsumexp = at::empty({logits.size(0)}, logits.options());
  const Tensor argmax = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  run<kKernel>(logits, LogSumExpArgs{input(logits), output(logsumexp), output(argmax),
                                     logits.size(0), logits.size(1)});
  return {logsumexp, argmax};
}

template <auto kKernel>
void cross_entropy_on(const Tensor& logits, const Tensor& target, double scale, const Tensor& loss,
                      bool in_bf16) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && target.dim() == 1 &&
                  target.is_contiguous() && target.size(0) == logits.size(0) &&
                  target.device() == logits.device() && logits.scalar_type() == at::kFloat,
              "logits ", logits.sizes(), ", target ", target.sizes());
  TORCH_CHECK(loss.is_contiguous() && loss.scalar_type() == at::kDouble &&
                  loss.numel() == logits.size(0) && loss.device() == logits.device(),
              "logits ", logits.toString(), logits.sizes(), ", loss ", loss.sizes());
  run<kKernel>(logits, CrossEntropyArgs{output(logits), input(target), output(loss), logits.size(0),
                                        logits.size(1), scale, in_bf16});
}

// -------------------------------------------------------------------- optimizer

template <auto kKernel>
void stochastic_round_on(const Tensor& in, const Tensor& out, int64_t key, int64_t first) {
  TORCH_CHECK(in.sizes() == out.sizes() && in.is_contiguous() && out.is_contiguous() &&
                  in.scalar_type() == at::kFloat && out.scalar_type() == at::kBFloat16,
              "in is ", in.toString(), in.sizes(), ", out is ", out.toString(), out.sizes());
  run<kKernel>(in, StochasticRoundArgs{input(in), static_cast<uint16_t*>(out.mutable_data_ptr()),
                                       in.numel(), static_cast<uint64_t>(key), first});
}

// -------------------------------------------------------------------- rms_norm.h

// Returns true if a kernel supports the dtypes; others are computed by LibTorch's operations.
template <bool kOnCuda>
bool has_rms_norm_kernel(const Tensor& x, const Tensor& weight) {
  return weight.device() == x.device() && weight.scalar_type() == at::kFloat &&
         (x.scalar_type() == at::kFloat || (kOnCuda && x.scalar_type() == at::kBFloat16));
}

// Returns y = norm(x + added), scale [T, 1], and x + added (undefined without `added`). x [T, D],
// weight [D]. y is bf16 with to_bf16. A CUDA kernel computes norm and sum in one pass.
template <auto kKernel>
std::tuple<Tensor, Tensor, Tensor> rms_norm_on(const Tensor& x, const Tensor& weight,
                                               double epsilon, bool to_bf16,
                                               const OptionalTensor& added) {
  constexpr bool kOnCuda = kIsCuda<kKernel, RmsNormForwardArgs>;
  const auto type = to_bf16 ? at::kBFloat16 : x.scalar_type();
  const bool is_fused = kOnCuda && has_tensor(added) && x.scalar_type() == at::kFloat &&
                        has_rms_norm_kernel<kOnCuda>(x, weight) && added->scalar_type() == type;
  const Tensor in = has_tensor(added) && !is_fused ? x + *added : x.contiguous();
  if (!has_rms_norm_kernel<kOnCuda>(in, weight)) {
    const Tensor scale = at::rsqrt(in.pow(2).mean(-1, true).add_(epsilon));
    const Tensor y = (in * scale).mul_(weight);
    return {to_bf16 ? y.to(type) : y, scale, has_tensor(added) ? in : Tensor()};
  }
  const bool is_f32 = in.scalar_type() == at::kFloat;
  const Tensor y = at::empty_like(in, to_bf16 ? type : in.scalar_type());
  const Tensor scale = at::empty({x.size(0), 1}, weight.options());
  const Tensor sum = is_fused ? at::empty_like(in) : Tensor();
  run<kKernel>(x, RmsNormForwardArgs{input(in), input(weight), output(y), output(scale), x.size(0),
                                     x.size(1), epsilon, !is_f32, is_f32 && to_bf16,
                                     input(is_fused ? added : std::nullopt), output(sum)});
  return {y, scale, has_tensor(added) && !is_fused ? in : sum};
}

// Returns the gradients of x and weight. grad_sum [T, D], if given, is a gradient of x from another
// operation; it is added to the gradient of x. The third result is that sum in bf16, from the CUDA
// kernel for f32 x and bf16 grad; otherwise undefined.
template <auto kKernel>
std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_on(const Tensor& grad, const Tensor& x,
                                                        const Tensor& weight, const Tensor& scale,
                                                        const OptionalTensor& grad_sum) {
  constexpr bool kOnCuda = kIsCuda<kKernel, RmsNormBackwardArgs>;
  const bool is_f32 = x.scalar_type() == at::kFloat;
  const bool reads_bf16 = kOnCuda && is_f32 && grad.scalar_type() == at::kBFloat16;
  const Tensor upstream = (reads_bf16 ? grad : grad.to(x.scalar_type())).contiguous();
  const bool is_fused = kOnCuda && is_f32 && has_tensor(grad_sum);
  Tensor grad_x, grad_weight, grad_added;
  if (has_rms_norm_kernel<kOnCuda>(x, weight)) {
    const Tensor strips =
        at::empty({kOnCuda ? rms_norm_strips(x.size(0)) : 0, x.size(1)}, weight.options());
    grad_x = at::empty(x.sizes(), x.options());
    grad_weight = at::empty(weight.sizes(), weight.options());
    grad_added = is_fused && reads_bf16 ? at::empty_like(upstream) : Tensor();
    run<kKernel>(x, RmsNormBackwardArgs{
                        input(upstream), input(x), input(weight), input(scale), output(grad_x),
                        output(grad_weight), x.size(0), x.size(1), !is_f32, output(strips),
                        reads_bf16, input(is_fused ? grad_sum : std::nullopt), output(grad_added)});
  } else {
    const Tensor normed = x * scale;
    grad_weight = (upstream * normed).sum(0);
    grad_x = upstream * weight;
    const Tensor mean = (grad_x * normed).mean(-1, true);
    grad_x.sub_(normed.mul_(mean)).mul_(scale);
  }
  if (has_tensor(grad_sum) && !is_fused) {
    grad_x.add_(*grad_sum);
  }
  return {grad_x, grad_weight, grad_added};
}

// ------------------------------------------------------------------------ rope.h

// Rotates the first `rotated` heads of the concatenation [T, N * A] of the parts [T, N_i * A], by
// LibTorch. Writes to `out` if given, which may be the only part.
inline Tensor rope_by_operations(at::TensorList parts, const Tensor& cosine, const Tensor& sine,
                                 const Tensor& position, int64_t rotated, bool backwards,
                                 const OptionalTensor& out) {
  const Tensor x = parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, 1);
  const int64_t half = cosine.size(1), heads = x.size(1) / (2 * half);
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor pairs = x.view({x.size(0), heads, 2, half});
  const Tensor rotating = pairs.narrow(1, 0, rotated).to(wide);
  const auto at_positions = [&](const Tensor& table) {
    return table.to(wide).index_select(0, position).unsqueeze(1);  // [T, 1, A / 2]
  };
  const Tensor c = at_positions(cosine), s = at_positions(sine) * (backwards ? -1 : 1);
  const Tensor low = rotating.select(2, 0), high = rotating.select(2, 1);
  const Tensor first = at::stack({low * c - high * s, high * c + low * s}, 2).to(x.scalar_type());
  const Tensor y = at::cat({first, pairs.narrow(1, rotated, heads - rotated)}, 1).view(x.sizes());
  return has_tensor(out) ? out->copy_(y) : y;
}

// -------------------------------------------------------- router.h, top_k_plan.h

// Returns scores, choice, local_choice and requested (RouterChoicesArgs). The CPU writes choice and
// local_choice only.
template <auto kKernel>
std::tuple<Tensor, Tensor, Tensor, Tensor> router_choices_on(const Tensor& logits,
                                                             const Tensor& source_rank,
                                                             int64_t ranks, int64_t choices) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  const auto ints = logits.options().dtype(at::kInt);
  const Tensor scores = at::empty(logits.sizes(), logits.options());
  const Tensor choice = at::empty({tokens, choices}, ints),
               local_choice = at::empty({tokens}, ints);
  const Tensor requested = at::empty({choices, experts * ranks}, ints);
  const RouterShape shape{tokens, experts, ranks, choices};
  run<kKernel>(logits, RouterChoicesArgs{input(logits), input(source_rank), shape, output(scores),
                                         output(choice), output(local_choice), output(requested)});
  return {scores, choice, local_choice, requested};
}

// Returns the experts of each token by descending logit, [T, E] i64; equal logits by index.
inline Tensor expert_order_by_operations(const Tensor& logits) {
  return std::get<1>(at::sort(logits, /*stable=*/true, /*dim=*/1, /*descending=*/true));
}

template <auto kKernel>
Tensor expert_order_on(const Tensor& logits) {
  if (logits.scalar_type() != at::kFloat) {
    return expert_order_by_operations(logits);
  }
  const Tensor order = at::empty(logits.sizes(), logits.options().dtype(at::kLong));
  run<kKernel>(logits,
               ExpertOrderArgs{input(logits), output(order), logits.size(0), logits.size(1)});
  return order;
}

// Returns the lists of TopKPlanRows: token, expert, choice, count [rows_max], rows [E], and
// overflow_token, overflow_expert, overflow_choice [overflow_max].
template <auto kKernel>
std::vector<Tensor> top_k_plan_on(const Tensor& scores, const Tensor& choice,
                                  const Tensor& local_choice, const Tensor& source_rank,
                                  const Tensor& requested, const Tensor& capacity, int64_t k,
                                  bool fill, bool rectify, bool by_score, int64_t rows_max,
                                  int64_t overflow_max) {
  const TopKPlanShape shape{scores.size(0), scores.size(1), capacity.size(0), choice.size(1), k,
                            fill,           rectify,        by_score};
  std::vector<Tensor> lists;
  for (const int64_t size : {rows_max, rows_max, rows_max, rows_max, shape.experts, overflow_max,
                             overflow_max, overflow_max}) {
    lists.push_back(at::empty({size}, scores.options().dtype(at::kLong)));
  }
  const Tensor scratch = at::empty({kIsCuda<kKernel, TopKPlanArgs> ? top_k_plan_scratch(shape) : 0},
                                   source_rank.options());
  run<kKernel>(scores, TopKPlanArgs{shape,
                                    {input(scores), input(choice), input(local_choice),
                                     input(source_rank), input(requested), input(capacity)},
                                    {output(lists[0]), output(lists[1]), output(lists[2]),
                                     output(lists[3]), rows_max, output(lists[4]), output(lists[5]),
                                     output(lists[6]), output(lists[7]), overflow_max},
                                    output(scratch)});
  return lists;
}

// ---------------------------------------------------------------- plan_gate_weights.h

// plan: token, expert, choice, count [R] i64 and source_rank [T] i64. REQUIRES: contiguous. Uses
// output(), because a copy made by input() would be freed on return.
inline PlanRows plan_rows(at::TensorList plan, int64_t experts, int64_t ranks, int64_t k) {
  return {output(plan[0]), output(plan[1]), output(plan[2]), output(plan[3]), output(plan[4]),
          plan[0].size(0), plan[4].size(0), experts,         ranks,           k};
}

// Returns count and counted (PlanCountsArgs).
template <auto kKernel>
std::tuple<Tensor, Tensor> plan_counts_on(const Tensor& logits, const Tensor& scores,
                                          at::TensorList plan, int64_t ranks, int64_t k,
                                          bool rectifies, bool is_dropless) {
  const auto options = logits.options();
  const Tensor count = at::empty(logits.sizes(), options);
  const Tensor counted = at::empty({(ranks + 1) * kRowKinds + 2}, options.dtype(at::kLong));
  const Tensor sums =
      at::empty({plan_gate_weights_sums(logits.size(0))}, options.dtype(at::kDouble));
  run<kKernel>(logits, PlanCountsArgs{plan_rows(plan, logits.size(1), ranks, k), input(logits),
                                      input(scores), rectifies, is_dropless, output(count),
                                      output(counted), output(sums)});
  return {count, counted};
}

// Returns combine, weights, load_balance, z and chosen (PlanGateWeightsArgs).
template <auto kKernel>
std::vector<Tensor> plan_gate_weights_on(const Tensor& logits, const Tensor& count,
                                         const Tensor& by_logit, at::TensorList plan, int64_t ranks,
                                         int64_t k, bool normalise, bool straight_through,
                                         int64_t lb_choices, int64_t ranks_in_use) {
  const auto options = logits.options();
  const Tensor combine = at::empty_like(logits);
  const Tensor weights = at::empty({plan[0].size(0)}, options);
  const Tensor load_balance = at::empty({}, options), z = at::empty({}, options);
  const Tensor chosen = at::empty({ranks * (logits.size(1) + 1)}, options.dtype(at::kInt));
  const Tensor sums =
      at::empty({2 * plan_gate_weights_sums(logits.size(0))}, options.dtype(at::kDouble));
  const GateOptions gates{normalise, straight_through, lb_choices, ranks_in_use};
  run<kKernel>(logits,
               PlanGateWeightsArgs{plan_rows(plan, logits.size(1), ranks, k), gates, input(logits),
                                   input(count), input(by_logit), output(combine), output(weights),
                                   output(chosen), output(sums), output(load_balance), output(z)});
  return {combine, weights, load_balance, z, chosen};
}

// Returns the gradient of the logits from those of weights, combine, load_balance and z.
template <auto kKernel>
Tensor plan_gate_weights_backward_on(const OptionalTensor& grad_weights,
                                     const OptionalTensor& grad_combine,
                                     const OptionalTensor& grad_load_balance,
                                     const OptionalTensor& grad_z, const Tensor& logits,
                                     const Tensor& count, const Tensor& combine,
                                     const Tensor& chosen, at::TensorList plan, int64_t ranks,
                                     int64_t k, bool normalise, bool straight_through,
                                     int64_t lb_choices, int64_t ranks_in_use) {
  const Tensor scratch = at::empty_like(logits), grad = at::empty_like(logits);
  const GateOptions gates{normalise, straight_through, lb_choices, ranks_in_use};
  run<kKernel>(logits, PlanGateWeightsBackwardArgs{plan_rows(plan, logits.size(1), ranks, k), gates,
                                                   input(logits), input(count), input(combine),
                                                   input(chosen), input(grad_weights),
                                                   input(grad_combine), input(grad_load_balance),
                                                   input(grad_z), output(scratch), output(grad)});
  return grad;
}

// Registers the operations whose kernels have the same name on `device`, cpu or cuda.
#define MOE_REGISTER_KERNELS(library, device)                                              \
  library.impl("permute", &permute_on<permute_##device>);                                  \
  library.impl("unpermute", &unpermute_on<unpermute_##device>);                            \
  library.impl("unpermute_backward", &unpermute_backward_on<unpermute_backward_##device>); \
  library.impl("swiglu", &swiglu_on<swiglu_forward_##device>);                             \
  library.impl("swiglu_backward", &swiglu_backward_on<swiglu_backward_##device, false>);   \
  library.impl("swiglu_backward_", &swiglu_backward_on<swiglu_backward_##device, true>);   \
  library.impl("logsumexp_argmax", &logsumexp_argmax_on<logsumexp_##device>);              \
  library.impl("cross_entropy_", &cross_entropy_on<cross_entropy_##device>);               \
  library.impl("stochastic_round", &stochastic_round_on<stochastic_round_##device>);       \
  library.impl("rms_norm", &rms_norm_on<rms_norm_forward_##device>);                       \
  library.impl("rms_norm_backward", &rms_norm_backward_on<rms_norm_backward_##device>);    \
  library.impl("router_choices", &router_choices_on<router_choices_##device>);             \
  library.impl("top_k_plan", &top_k_plan_on<top_k_plan_##device>);                         \
  library.impl("plan_counts", &plan_counts_on<plan_counts_##device>);                      \
  library.impl("plan_gate_weights", &plan_gate_weights_on<plan_gate_weights_##device>);    \
  library.impl("plan_gate_weights_backward",                                               \
               &plan_gate_weights_backward_on<plan_gate_weights_backward_##device>)

}  // namespace moe::kernels
