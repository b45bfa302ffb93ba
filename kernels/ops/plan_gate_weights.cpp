#include "kernels/ops/plan_gate_weights.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/operations.h"

namespace moe::kernels {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

std::vector<Tensor> plan_lists(const PlanTensors& plan) {
  return {plan.token, plan.expert, plan.choice, plan.count, plan.source_rank};
}

// Non-tensor state of a PlanGateWeights node.
struct SavedPlan : torch::CustomClassHolder {
  SavedPlan(const PlanTensors& plan, const PlanWeightsKind& kind) : plan_and_kind(plan, kind) {}
  std::pair<PlanTensors, PlanWeightsKind> plan_and_kind;
};

struct PlanGateWeights : torch::autograd::Function<PlanGateWeights> {
  // Returns combine [T, E], weights [R], load balance [], z [].
  static variable_list forward(AutogradContext* context, const Tensor& given, const Tensor& count,
                               const Tensor& by_logit, const PlanTensors& plan,
                               const PlanWeightsKind& kind) {
    static const Operation<decltype(plan_weights_on<plan_weights_cpu>)> operation(
        "moe::plan_weights");
    const Tensor logits = given.contiguous();
    std::vector<Tensor> results =
        operation(logits, count, by_logit.contiguous(), plan_lists(plan), plan.ranks, plan.k,
                  kind.normalise, kind.straight_through, kind.lb_choices, kind.ranks_in_use);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, results[0], results[4]});
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan, kind));
    results.pop_back();
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["plan"].toCapsule();
    const auto& [plan, kind] = static_cast<const SavedPlan&>(*held).plan_and_kind;
    static const Operation<decltype(plan_weights_backward_on<plan_weights_backward_cpu>)> operation(
        "moe::plan_weights_backward");
    for (Tensor& gradient : upstream) {
      gradient = gradient.defined() ? gradient.contiguous() : gradient;
    }
    return {operation(upstream[1], upstream[0], upstream[2], upstream[3], saved[0], saved[1],
                      saved[2], saved[3], plan_lists(plan), plan.ranks, plan.k, kind.normalise,
                      kind.straight_through, kind.lb_choices, kind.ranks_in_use),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

PlanCounts count_plan(const Tensor& logits, const Tensor& scores, const PlanTensors& plan,
                      bool rectifies, bool is_dropless) {
  static const Operation<decltype(plan_counts_on<plan_counts_cpu>)> operation("moe::plan_counts");
  const auto [count, counted] =
      operation(logits, scores, plan_lists(plan), plan.ranks, plan.k, rectifies, is_dropless);
  return {count, counted};
}

PlanWeights plan_gate_weights(const Tensor& logits, const Tensor& count, const Tensor& by_logit,
                              const PlanTensors& plan, const PlanWeightsKind& kind) {
  const variable_list results = PlanGateWeights::apply(logits, count, by_logit, plan, kind);
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace moe::kernels
