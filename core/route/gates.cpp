#include "core/route/gates.h"

#include <torch/csrc/autograd/custom_function.h>

#include <limits>

namespace moe::route {
namespace {

// n e^{a - max} / sum of the same over a token's experts with n > 0.
at::Tensor normalised_weights(const at::Tensor& logits, const at::Tensor& count) {
  const at::Tensor none = count <= 0;
  const at::Tensor selected = logits.masked_fill(none, -std::numeric_limits<double>::infinity());
  const at::Tensor empty = none.all(1, /*keepdim=*/true);
  const at::Tensor highest = selected.amax(1, /*keepdim=*/true).masked_fill(empty, 0);
  const at::Tensor mass = (selected - highest).exp() * count;
  return mass / mass.sum(1, /*keepdim=*/true).masked_fill(empty, 1);
}

struct SoftmaxGates : torch::autograd::Function<SoftmaxGates> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& count, bool normalise, bool straight_through) {
    const bool through_all = straight_through || !normalise;
    const at::Tensor probabilities = through_all ? at::softmax(logits, 1) : at::Tensor();
    at::Tensor weights = normalise ? normalised_weights(logits, count) : probabilities * count;
    context->save_for_backward({weights, through_all ? probabilities : weights});
    return weights;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const at::Tensor pulled = saved[0] * upstream[0];  // w U
    return {pulled - saved[1] * pulled.sum(1, /*keepdim=*/true), {}, {}, {}};
  }
};

// Where row i of the plan stands in a flattened [T, E] matrix; 0 for unused rows.
at::Tensor cells(const RouteInput& input, const Plan& plan) {
  const at::Tensor unused = plan.expert == input.experts();
  return (plan.token * input.experts() + plan.expert).masked_fill(unused, 0);
}

}  // namespace

at::Tensor multiplicities(const RouteInput& input, const Plan& plan) {
  return at::zeros({input.tokens() * input.experts()}, input.logits.options())
      .scatter_add_(0, cells(input, plan), plan.count.to(input.logits.scalar_type()))
      .view({input.tokens(), input.experts()});
}

at::Tensor softmax_gates(const at::Tensor& logits, const at::Tensor& count, bool normalise,
                         bool straight_through) {
  return SoftmaxGates::apply(logits, count, normalise, straight_through);
}

at::Tensor relu_gates(const at::Tensor& logits, const at::Tensor& count) {
  return at::relu(logits) * count;
}

at::Tensor row_weights(const at::Tensor& combine, const at::Tensor& count, const RouteInput& input,
                       const Plan& plan) {
  const at::Tensor cell = cells(input, plan);
  const at::Tensor share =
      plan.count.to(combine.scalar_type()) / count.reshape(-1).index_select(0, cell).clamp_min(1);
  return combine.reshape(-1).index_select(0, cell) * share;
}

}  // namespace moe::route
