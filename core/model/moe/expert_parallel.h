#pragma once
// What a model needs to know of the other ranks when the experts of a layer are shared out
// (SPEC section 12): who they are, and how many tokens each of them has. W logical ranks, E
// experts, G processes of an expert-parallel group (core/dist/world.h).

#include <cstdint>
#include <vector>

#include "core/dist/comm.h"
#include "core/dist/world.h"
#include "core/route/router_settings.h"
#include "core/route/rule.h"

namespace moe::model {

struct ExpertParallel {
  dist::Comm* group = nullptr;  // the G places; outlives every forward and backward
  dist::Layout layout = {};     // G = 1: all experts are here, and the group is not asked
  // Experts run on the rows that stay home while others travel: two products in place of one. By
  // default where a device works beside the host.
  bool overlaps = false;
  // Experts with far more rows than others may be lent (lent_experts.h). By default on the CPU.
  bool lends = false;

  int64_t size() const { return layout.group(); }
  int64_t place() const { return layout.place(); }
};

// Where the tokens of one forward live: those of this process, and how many everybody has. Gathered
// once a forward; all layers route by it.
struct TokenSpread {
  // One process alone, tokens anywhere.
  TokenSpread(route::RoutingGroup tokens_here);  // NOLINT: a routing group is one
  // SPEC D1: token v of `tokens` is at home on the floor(v (W/G) / tokens)-th logical rank of this
  // process. A collective of the group: all its processes call it, also with no tokens.
  TokenSpread(int64_t tokens, int64_t logical_ranks, const ExpertParallel& among);

  bool is_shared() const { return parallel.size() > 1; }

  route::RoutingGroup here;          // homes count over all W; other processes' have no tokens here
  std::vector<int64_t> rank_tokens;  // [W] T_r, of all processes
  // Logical ranks with tokens here / those of the group: what a mean over the ranks of this process
  // counts for in the mean over all of them (SPEC D11). 1 for a process alone.
  double loss_share = 1;
  ExpertParallel parallel = {};
};

// How the rows of one layer travel follows from where tokens are and from the router.
struct Sharing {
  const TokenSpread& spread;
  const route::RouterSettings& router;

  // [W] C_r of every logical rank; empty for dropless routers.
  std::vector<int64_t> capacity(int64_t experts) const;
};

}  // namespace moe::model
