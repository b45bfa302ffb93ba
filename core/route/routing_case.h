#pragma once
// Routing cases (README.md, "Cases"): what is routed goes in, the decisions, weights, losses and
// gradients of the production path come out under the same names. T tokens, E experts, W logical
// ranks.

#include <ATen/ATen.h>

#include <string>

#include "core/base/json.h"
#include "core/route/route.h"

namespace moe::route {

// Something to route.
struct RoutingCase {
  at::Tensor logits;    // [T, E] f32
  at::Tensor upstream;  // [T, E] f32, the gradient of a loss with respect to the weights; may be
                        // undefined
  RoutingGroup group;
  RouterSettings router;
  at::Tensor bias = {};  // [E] f32 of the choice; undefined: none, or zeros
};

// The kinds of case that are answered here; a case of kind "layer" needs a model
// (core/model/moe/layer_case.h).
bool is_routing_case(const std::string& kind);  // the name of a router family
bool is_rule_case(const std::string& kind);     // lambda, capacity: arithmetic without tokens
std::string case_kinds();                       // all that is answered, "topk, topp, ..."

// The `input` of a case whose kind is a router family. UserError, opened by `where`: a missing or
// misshapen key, numbers that no router can take, ranks that do not divide the experts.
RoutingCase read_routing_case(const std::string& kind, const Json& input, const std::string& where);

// {"expect", "loss", "grad"}; what needs `upstream` is left out without it.
OrderedJson answer(const RoutingCase& routing_case);
// {"expect"} of kinds lambda and capacity. UserError as above.
OrderedJson answer_rule_case(const std::string& kind, const Json& input, const std::string& where);

// `one` as the input of a case, so that any routing can be stored as one.
OrderedJson input_json(const RoutingCase& routing_case);

// ---------------------------------------------------------------- what layer cases are made of too
// input[key], rows of equally many finite numbers: [n, m] f32, n and m positive.
at::Tensor read_matrix(const Json& input, const std::string& key, const std::string& where);
// num_ranks, home and valid of `input` for `tokens` tokens. Without home, valid tokens are spread
// over the ranks (spread_over_ranks).
RoutingGroup read_group(const Json& input, int64_t tokens, int64_t experts,
                        const std::string& where);
// [n, m] as nested lists, each number with as few digits as name it in f32.
OrderedJson matrix_json(const at::Tensor& matrix);
OrderedJson number_json(const at::Tensor& scalar);
// slots, drops, fr_filled, ir and stats of a router whose experts have slots; selected and stats of
// the others.
void put_decisions(const Routing& routing, const RouterSettings& router, OrderedJson& expect);

}  // namespace moe::route
