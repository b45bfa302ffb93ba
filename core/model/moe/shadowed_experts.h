#pragma once
// Shadowed experts (He et al. 2022, "FasterMoE", section 4.1, dynamic shadowing): where few experts
// have most of the rows, the process that owns them computes while the others wait. So it sends
// those experts' weights to all processes for this step instead of receiving rows, and every
// process runs its own rows through the replica. The weight gradients of the replicas are summed at
// the owner. What is computed does not change; sums over rows are taken in parts. G processes, E
// experts.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/distributed/comm.h"

namespace moe::model {

// Sending an expert [3, F, D] to one other process and its gradient back takes as long as the
// products of about this many rows, whatever F and D: a row is 18 F D operations with backward, an
// expert 24 F D bytes both ways (a core here: 80 GFLOP/s, 5 GB/s through memory that is written,
// read and added).
inline constexpr int64_t kShadowingRows = 64;

// tokens_per_expert[q][e]: rows of process q at expert e, which process e / (E / G) owns. Returns
// the experts to shadow, ascending: again and again the expert of the busiest process that has most
// rows of others, as long as that shortens the longest work. Integers alone, so the answer is the
// same on every process.
std::vector<int64_t> choose_shadowed(const std::vector<std::vector<int64_t>>& tokens_per_expert);

// Who owns the shadowed experts: one entry an expert, ascending.
struct Shadowing {
  distributed::Comm* group;
  std::vector<int64_t> owner;        // rank in the group
  std::vector<int64_t> local_index;  // among the owner's experts

  Shadowing(distributed::Comm& among, const std::vector<int64_t>& shadowed, int64_t local_experts);
  int64_t owned_count() const;  // how many of them this process owns
};

struct ShadowedWeights {
  at::Tensor owned;     // [E/G, N, M] the local weights; use it in their place
  at::Tensor replicas;  // [shadowed experts that others own, N, M]
};

// Replicates the shadowed experts among `weights` [E/G, N, M]. A collective of the group, forward
// and backward, unless the list is empty. In backward the gradient of a shadowed expert is the sum
// over processes, in the order of their ranks.
ShadowedWeights shadow_weights(const at::Tensor& weights, const Shadowing& shadowing);

}  // namespace moe::model
