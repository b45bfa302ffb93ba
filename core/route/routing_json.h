#pragma once
// JSON of `moe route`: reads logits with the placement of their tokens, and writes a routing as the
// decisions that the papers speak of. T tokens, E experts, W logical ranks.

#include <ATen/ATen.h>

#include <string>

#include "core/base/json.h"
#include "core/route/route.h"

namespace moe::route {

struct RoutingProblem {
  at::Tensor logits;  // [T, E] f32
  RoutingGroup group;
  RouterSettings router;
};

// Reads the key "logits" [T][E] (required), and where they are given "num_ranks", "home" [T] and
// "valid" [T] of `input`. Without "home", valid tokens are spread over the ranks
// (spread_over_ranks). Throws UserError, opened by `where`, for misshapen keys, numbers that are
// not finite in f32, and ranks or experts that do not fit `router`.
RoutingProblem read_problem(const Json& input, const RouterSettings& router,
                            const std::string& where);

// Routes the problem and returns {"kind", "input", "expect", "loss"}: the name of the router
// family, the problem, the decisions with the combine weights, and the unscaled losses of the
// router. Numbers have as few digits as identify them in f32. With slots, "expect" has "capacity"
// [W], "slots" [W][E] of tokens in slot order, "accepted" [T], "choices", and the lists "drops" of
// [token, choice from 1, expert], "fr_filled" of [token, expert] and "ir" of [token, expert,
// multiplicity]; without, "selected" [T].
OrderedJson route_to_json(const RoutingProblem& problem);

}  // namespace moe::route
