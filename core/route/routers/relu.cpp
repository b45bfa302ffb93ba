#include "core/route/routers/relu.h"

#include "core/route/gates.h"
#include "core/route/route.h"
#include "core/route/rows.h"

namespace moe::route {
namespace {

// An expert runs for a token iff its logit is positive. No capacity; a token may get no expert at
// all.
Plan positive(const RouteInput& input, const Plan&) {
  const at::Tensor keep = input.logits.gather(1, input.ranked) > 0;
  const Rows rows = sort_by_group(input, requests(input, input.ranked, keep, 0));
  return with_rows(input, rows, rows.token.size(0), {});
}

at::Tensor scores(const at::Tensor& logits) { return at::relu(logits); }

std::vector<Rule> rules(const RouterSettings&) { return {positive}; }

at::Tensor gates(const at::Tensor& logits, const at::Tensor& count, const RouterSettings&) {
  return relu_gates(logits, count);
}

AuxLosses losses(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                 const RouterSettings& settings) {
  AuxLosses all;
  all.l1 = l1_loss(logits, input, count, settings);
  return all;
}

}  // namespace

RouterFunctions Relu::functions() { return {scores, rules, gates, losses}; }

}  // namespace moe::route
