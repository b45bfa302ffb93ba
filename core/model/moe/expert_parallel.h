#pragma once
// What a model knows of the other ranks when the experts of its layers are distributed over an
// expert-parallel group: who they are, and how many tokens each of them has. W logical ranks, E
// experts, G processes of the group (core/distributed/comm.h).

#include <cstdint>
#include <vector>

#include "core/distributed/comm.h"
#include "core/route/router_settings.h"
#include "core/route/rule.h"

namespace moe::model {

struct ExpertParallel {
  distributed::Comm* group = nullptr;  // the G processes; outlives every forward and backward
  distributed::Layout layout = {};     // G = 1: all experts are local, and the group is never asked
  // Local rows run through the experts while others travel: two products in place of one. On by
  // default where the device works beside the host.
  bool overlap_all_to_all = false;
  // A GPU's host reads the tokens per expert also where it need not (make_fixed_layout() in
  // dispatch_layout.h): to compare.
  bool reads_counts = false;

  int64_t size() const { return layout.group(); }
  int64_t ep_rank() const { return layout.ep_rank(); }
};

// Where the tokens of one forward live: those of this process, and how many each logical rank has.
// Gathered once a forward; all layers route by it.
struct TokenSpread {
  // One process alone, tokens anywhere.
  TokenSpread(route::RoutingGroup local_tokens);  // NOLINT: a routing group is one
  // Token v of `tokens` has its home on the floor(v (W/G) / tokens)-th logical rank of this
  // process. A collective of the group: all its processes call it, also with no tokens. `sequences`
  // of this process, where balance within them is asked for; on all processes or on none.
  TokenSpread(int64_t tokens, int64_t logical_ranks, const ExpertParallel& among,
              int64_t sequences = 0);

  bool is_expert_parallel() const { return parallel.size() > 1; }

  route::RoutingGroup local;  // homes count over all W; no token here is at home on another process
  std::vector<int64_t> rank_tokens;  // [W] T_r, of all processes
  // Logical ranks with tokens on this process / those of the group: by this a mean over the ranks
  // of this process counts in the mean over all of them. 1 for a process alone.
  double loss_scale = 1;
  double sequence_scale = 1;  // the same of sequences, for means over those
  ExpertParallel parallel = {};
};

}  // namespace moe::model
