#include "kernels/ops/operations.h"
#include "kernels/ops/plan_tensors.h"

namespace moe::kernels {

namespace {

struct PlanGateWeights : torch::autograd::Function<PlanGateWeights> {
  // Returns combine [T, E], weights [R], load balance [], z [].
  static variable_list forward(AutogradContext* context, const Tensor& logits_in,
                               const Tensor& count, const Tensor& by_logit, const PlanTensors& plan,
                               const GateOptions& options) {
    const Tensor logits = logits_in.contiguous();
    std::vector<Tensor> results =
        call<"moe::plan_gate_weights", decltype(plan_gate_weights_on<plan_gate_weights_cpu>)>(
            logits, count, by_logit.contiguous(), plan.lists, plan.ranks, plan.k, options.normalise,
            options.straight_through, options.lb_choices, options.ranks_in_use);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, results[0], results[4]});
    save_value(context, std::pair(plan, options));
    results.pop_back();
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto [plan, options] = saved_value<std::pair<PlanTensors, GateOptions>>(context);
    for (Tensor& gradient : upstream) {
      gradient = gradient.defined() ? gradient.contiguous() : gradient;
    }
    return {call<"moe::plan_gate_weights_backward",
                 decltype(plan_gate_weights_backward_on<plan_gate_weights_backward_cpu>)>(
                upstream[1], upstream[0], upstream[2], upstream[3], saved[0], saved[1], saved[2],
                saved[3], plan.lists, plan.ranks, plan.k, options.normalise,
                options.straight_through, options.lb_choices, options.ranks_in_use),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::tuple<Tensor, Tensor> count_plan(const Tensor& logits, const Tensor& scores,
                                      const PlanTensors& plan, bool rectifies, bool is_dropless) {
  return call<"moe::plan_counts", decltype(plan_counts_on<plan_counts_cpu>)>(
      logits, scores, plan.lists, plan.ranks, plan.k, rectifies, is_dropless);
}

GateWeights plan_gate_weights(const Tensor& logits, const Tensor& count, const Tensor& by_logit,
                              const PlanTensors& plan, const GateOptions& options) {
  const variable_list results = PlanGateWeights::apply(logits, count, by_logit, plan, options);
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace moe::kernels
