#include "kernels/ops/weigh_plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

namespace moe::kernels {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

const float* f32_pointer(const Tensor& f32) {
  return f32.defined() ? f32.const_data_ptr<float>() : nullptr;
}

// The plan of a WeighPlan node; it has no gradient.
struct SavedPlan : torch::CustomClassHolder {
  SavedPlan(const PlanTensors& given, const PlanWeightsKind& given_kind)
      : plan(given), kind(given_kind) {}
  PlanTensors plan;
  PlanWeightsKind kind;
};

struct WeighPlan : torch::autograd::Function<WeighPlan> {
  // Returns combine [T, E], weights [R], load balance [], z [].
  static variable_list forward(AutogradContext* context, const Tensor& given, const Tensor& count,
                               const Tensor& by_logit, const PlanTensors& plan,
                               const PlanWeightsKind& kind) {
    const Tensor logits = given.contiguous(), order = by_logit.contiguous();
    const auto options = logits.options();
    const Tensor combine = at::empty_like(logits, at::MemoryFormat::Contiguous);
    const Tensor weights = at::empty({plan.token.size(0)}, options);
    const Tensor load_balance = at::empty({}, options), z = at::empty({}, options);
    const Tensor chosen = at::empty({plan.ranks * (plan.experts + 1)}, options.dtype(at::kInt));
    const Tensor sums =
        at::empty({2 * plan_weights_sums(logits.size(0))}, options.dtype(at::kDouble));
    run_on(logits,
           PlanWeightsArgs{plan.rows(), kind, logits.const_data_ptr<float>(),
                           count.const_data_ptr<float>(), order.const_data_ptr<int64_t>(),
                           combine.data_ptr<float>(), weights.data_ptr<float>(),
                           chosen.data_ptr<int32_t>(), sums.data_ptr<double>(),
                           load_balance.data_ptr<float>(), z.data_ptr<float>()},
           &CudaFunctions::plan_weights, plan_weights_cpu);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, combine, chosen});
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan, kind));
    return {combine, weights, load_balance, z};
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["plan"].toCapsule();
    const auto& decided = static_cast<const SavedPlan&>(*held);
    for (Tensor& gradient : upstream) {
      gradient = gradient.defined() ? gradient.contiguous() : gradient;
    }
    const Tensor& logits = saved[0];
    const Tensor pulled = at::empty_like(logits), grad = at::empty_like(logits);
    run_on(logits,
           PlanWeightsBackwardArgs{
               decided.plan.rows(), decided.kind, logits.const_data_ptr<float>(),
               saved[1].const_data_ptr<float>(), saved[2].const_data_ptr<float>(),
               saved[3].const_data_ptr<int32_t>(), f32_pointer(upstream[1]),
               f32_pointer(upstream[0]), f32_pointer(upstream[2]), f32_pointer(upstream[3]),
               pulled.data_ptr<float>(), grad.data_ptr<float>()},
           &CudaFunctions::plan_weights_backward, plan_weights_backward_cpu);
    return {grad, {}, {}, {}, {}};
  }
};

}  // namespace

PlanRows PlanTensors::rows() const {
  return {token.const_data_ptr<int64_t>(),
          expert.const_data_ptr<int64_t>(),
          choice.const_data_ptr<int64_t>(),
          count.const_data_ptr<int64_t>(),
          home.const_data_ptr<int64_t>(),
          token.size(0),
          home.size(0),
          experts,
          ranks,
          k};
}

PlanCounts count_plan(const Tensor& logits, const Tensor& scores, const PlanTensors& plan,
                      bool rectifies, bool dropless) {
  const auto options = logits.options();
  const PlanCounts to{at::empty({logits.size(0), plan.experts}, options),
                      at::empty({(plan.ranks + 1) * kRowKinds + 2}, options.dtype(at::kLong))};
  const Tensor sums = at::empty({plan_weights_sums(logits.size(0))}, options.dtype(at::kDouble));
  run_on(logits,
         PlanCountsArgs{plan.rows(), logits.const_data_ptr<float>(), scores.const_data_ptr<float>(),
                        rectifies, dropless, to.count.data_ptr<float>(),
                        to.counted.data_ptr<int64_t>(), sums.data_ptr<double>()},
         &CudaFunctions::plan_counts, plan_counts_cpu);
  return to;
}

PlanWeights weigh_plan(const Tensor& logits, const Tensor& count, const Tensor& by_logit,
                       const PlanTensors& plan, const PlanWeightsKind& kind) {
  const variable_list found = WeighPlan::apply(logits, count, by_logit, plan, kind);
  return {found[0], found[1], found[2], found[3]};
}

}  // namespace moe::kernels
