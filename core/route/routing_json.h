#pragma once
// JSON of moe route: reads logits and the source ranks of their tokens, and writes the accepted,
// dropped, filled-in and rectified requests of a routing.
//
// T tokens, E experts, W logical ranks.

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/route/plan.h"
#include "core/route/route.h"

namespace moe::route {

struct RoutingProblem {
  at::Tensor logits;  // [T, E] f32
  RoutingGroup group;
  RouterSettings router;
};

// Reads "logits" [T][E] and the optional keys "num_ranks", "home" [T] (source ranks) and "valid"
// [T] of `input`. Without "home", valid tokens are assigned by partition_tokens(). Throws
// UserError that opens with `where` for keys of another shape, numbers that are not finite in f32,
// and ranks or experts that do not fit `router`.
RoutingProblem read_problem(const Json& input, const RouterSettings& router,
                            const std::string& where);

// Routes the problem and returns {"kind", "input", "expect", "loss"}: the router family, the
// problem, the decisions and weights, and the losses without coefficients. Numbers have the
// shortest digits that identify an f32. "expect" of routers with slots has "capacity" [W] and the
// members of Decisions; otherwise "selected" [T].
OrderedJson route_to_json(const RoutingProblem& problem);

// A plan as lists on the host.
struct Decisions {
  using List = std::vector<int64_t>;
  std::vector<std::vector<List>> slots;  // [W][E], tokens of that rank in slot order
  std::vector<List> accepted;            // [T], experts that accepted the token, best first
  std::vector<List> drops;               // {token, choice from 1, expert}, ascending
  std::vector<List> fr_filled;           // {token, expert}, ascending
  std::vector<List> ir;                  // {token, expert, multiplicity}, ascending
};
Decisions list_decisions(const RouteInput& input, const Plan& plan);

}  // namespace moe::route
