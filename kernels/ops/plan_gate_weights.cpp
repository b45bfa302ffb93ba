#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/operations.h"
#include "kernels/ops/plan_tensors.h"

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
  SavedPlan(const PlanTensors& plan, const GateOptions& options)
      : plan_and_options(plan, options) {}
  std::pair<PlanTensors, GateOptions> plan_and_options;
};

struct PlanGateWeights : torch::autograd::Function<PlanGateWeights> {
  // Returns combine [T, E], weights [R], load balance [], z [].
  static variable_list forward(AutogradContext* context, const Tensor& given, const Tensor& count,
                               const Tensor& by_logit, const PlanTensors& plan,
                               const GateOptions& options) {
    const Tensor logits = given.contiguous();
    std::vector<Tensor> results =
        call<"moe::plan_gate_weights", decltype(plan_gate_weights_on<plan_gate_weights_cpu>)>(
            logits, count, by_logit.contiguous(), plan_lists(plan), plan.ranks, plan.k,
            options.normalise, options.straight_through, options.lb_choices, options.ranks_in_use);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, results[0], results[4]});
    context->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan, options));
    results.pop_back();
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["plan"].toCapsule();
    const auto& [plan, options] = static_cast<const SavedPlan&>(*held).plan_and_options;
    for (Tensor& gradient : upstream) {
      gradient = gradient.defined() ? gradient.contiguous() : gradient;
    }
    return {call<"moe::plan_gate_weights_backward",
                 decltype(plan_gate_weights_backward_on<plan_gate_weights_backward_cpu>)>(
                upstream[1], upstream[0], upstream[2], upstream[3], saved[0], saved[1], saved[2],
                saved[3], plan_lists(plan), plan.ranks, plan.k, options.normalise,
                options.straight_through, options.lb_choices, options.ranks_in_use),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

PlanCounts count_plan(const Tensor& logits, const Tensor& scores, const PlanTensors& plan,
                      bool rectifies, bool is_dropless) {
  const auto [count, counted] = call<"moe::plan_counts", decltype(plan_counts_on<plan_counts_cpu>)>(
      logits, scores, plan_lists(plan), plan.ranks, plan.k, rectifies, is_dropless);
  return {count, counted};
}

GateWeights plan_gate_weights(const Tensor& logits, const Tensor& count, const Tensor& by_logit,
                              const PlanTensors& plan, const GateOptions& options) {
  const variable_list results = PlanGateWeights::apply(logits, count, by_logit, plan, options);
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace moe::kernels
