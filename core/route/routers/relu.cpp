#include "core/route/routers/relu.h"

#include "core/route/plan.h"
#include "core/route/route.h"

namespace moe::route {
namespace {

// Every token uses the experts with a positive logit, possibly none. No capacity.
Plan take_positive(const RouteInput& input, const Plan&) {
  const at::Tensor experts = input.experts_by_choice;
  const at::Tensor keep = input.logits.gather(1, experts) > 0;
  const Rows rows = sort_by_group(input, request_rows(input, experts, keep, 0));
  return with_rows(input, rows, rows.token.size(0), {});
}

at::Tensor scores(const at::Tensor& logits) { return at::relu(logits); }

std::vector<Rule> rules(const RouterSettings&) { return {take_positive}; }

// Returns w_ij = n_ij max(0, a_ij).
at::Tensor gates(const at::Tensor& logits, const at::Tensor& count, const RouterSettings&) {
  return at::relu(logits) * count;
}

AuxLosses losses(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                 const RouterSettings& settings) {
  AuxLosses all;
  add_l1_loss(all, logits, input, count, settings);
  return all;
}

}  // namespace

RouterFunctions Relu::functions() { return {scores, rules, gates, losses}; }

}  // namespace moe::route
