#include "core/route/gates.h"

#include <torch/csrc/autograd/custom_function.h>

#include <limits>

namespace moe::route {
namespace {

// n e^{a - max} / sum of the same over a token's experts with n > 0.
torch::Tensor normalised_weights(const torch::Tensor& logits, const torch::Tensor& count) {
  const torch::Tensor none = count <= 0;
  const torch::Tensor selected = logits.masked_fill(none, -std::numeric_limits<double>::infinity());
  const torch::Tensor empty = none.all(1, /*keepdim=*/true);
  const torch::Tensor highest = selected.amax(1, /*keepdim=*/true).masked_fill(empty, 0);
  const torch::Tensor mass = (selected - highest).exp() * count;
  return mass / mass.sum(1, /*keepdim=*/true).masked_fill(empty, 1);
}

struct SoftmaxGates : torch::autograd::Function<SoftmaxGates> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& logits,
                               const torch::Tensor& count,
                               bool normalise,
                               bool straight_through) {
    const bool through_all = straight_through || !normalise;
    const torch::Tensor probabilities = through_all ? torch::softmax(logits, 1) : torch::Tensor();
    torch::Tensor weights = normalise ? normalised_weights(logits, count) : probabilities * count;
    context->save_for_backward({weights, through_all ? probabilities : weights});
    return weights;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor pulled = saved[0] * upstream[0];  // w U
    return {pulled - saved[1] * pulled.sum(1, /*keepdim=*/true), {}, {}, {}};
  }
};

// Where row i of the plan stands in a flattened [T, E] matrix; 0 for unused rows.
torch::Tensor cells(const RouteInput& input, const Plan& plan) {
  const torch::Tensor unused = plan.expert == input.experts();
  return (plan.token * input.experts() + plan.expert).masked_fill(unused, 0);
}

}  // namespace

torch::Tensor multiplicities(const RouteInput& input, const Plan& plan) {
  return torch::zeros({input.tokens() * input.experts()}, input.logits.options())
      .scatter_add_(0, cells(input, plan), plan.count.to(input.logits.scalar_type()))
      .view({input.tokens(), input.experts()});
}

torch::Tensor softmax_gates(const torch::Tensor& logits,
                            const torch::Tensor& count,
                            bool normalise,
                            bool straight_through) {
  return SoftmaxGates::apply(logits, count, normalise, straight_through);
}

torch::Tensor relu_gates(const torch::Tensor& logits, const torch::Tensor& count) {
  return torch::relu(logits) * count;
}

torch::Tensor row_weights(const torch::Tensor& combine,
                          const torch::Tensor& count,
                          const RouteInput& input,
                          const Plan& plan) {
  const torch::Tensor cell = cells(input, plan);
  const torch::Tensor share =
      plan.count.to(combine.scalar_type()) / count.reshape(-1).index_select(0, cell).clamp_min(1);
  return combine.reshape(-1).index_select(0, cell) * share;
}

}  // namespace moe::route
