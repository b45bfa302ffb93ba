#include "kernels/ops/weigh_plan.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/operations.h"

namespace moe::kernels {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

std::vector<Tensor> lists_of(const PlanTensors& plan) {
  return {plan.token, plan.expert, plan.choice, plan.count, plan.home};
}

// The plan of a WeighPlan node; it has no gradient.
struct SavedPlan : torch::CustomClassHolder {
  SavedPlan(const PlanTensors& plan, const PlanWeightsKind& kind) : decided(plan, kind) {}
  std::pair<PlanTensors, PlanWeightsKind> decided;
};

struct WeighPlan : torch::autograd::Function<WeighPlan> {
  // Returns combine [T, E], weights [R], load balance [], z [].
  static variable_list forward(AutogradContext* context, const Tensor& given, const Tensor& count,
                               const Tensor& by_logit, const PlanTensors& plan,
                               const PlanWeightsKind& kind) {
    static const Operation<decltype(plan_weights_on<plan_weights_cpu>)> operation(
        "moe::plan_weights");
    const Tensor logits = given.contiguous();
    std::vector<Tensor> found =
        operation(logits, count, by_logit.contiguous(), lists_of(plan), plan.ranks, plan.k,
                  kind.normalise, kind.straight_through, kind.lb_choices, kind.ranks_in_use);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, found[0], found[4]});
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan, kind));
    found.pop_back();
    return found;
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["plan"].toCapsule();
    const auto& [plan, kind] = static_cast<const SavedPlan&>(*held).decided;
    static const Operation<decltype(plan_weights_backward_on<plan_weights_backward_cpu>)> operation(
        "moe::plan_weights_backward");
    for (Tensor& gradient : upstream) {
      gradient = gradient.defined() ? gradient.contiguous() : gradient;
    }
    return {operation(upstream[1], upstream[0], upstream[2], upstream[3], saved[0], saved[1],
                      saved[2], saved[3], lists_of(plan), plan.ranks, plan.k, kind.normalise,
                      kind.straight_through, kind.lb_choices, kind.ranks_in_use),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

PlanCounts count_plan(const Tensor& logits, const Tensor& scores, const PlanTensors& plan,
                      bool rectifies, bool dropless) {
  static const Operation<decltype(plan_counts_on<plan_counts_cpu>)> operation("moe::plan_counts");
  const auto [count, counted] =
      operation(logits, scores, lists_of(plan), plan.ranks, plan.k, rectifies, dropless);
  return {count, counted};
}

PlanWeights weigh_plan(const Tensor& logits, const Tensor& count, const Tensor& by_logit,
                       const PlanTensors& plan, const PlanWeightsKind& kind) {
  const variable_list found = WeighPlan::apply(logits, count, by_logit, plan, kind);
  return {found[0], found[1], found[2], found[3]};
}

}  // namespace moe::kernels
