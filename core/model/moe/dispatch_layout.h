#pragma once
// Dispatch layout of expert parallelism: the counts of rows that a process sends and receives, and
// the permutations into the send buffer and, after the transfer, into expert order. Moves no rows.
//
// T tokens, E experts, L experts of this process (E/G), R rows of a plan, G processes, W logical
// ranks, C_r slots per expert of logical rank r.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/distributed/comm.h"
#include "core/route/plan.h"
#include "core/route/route.h"
#include "core/route/router.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"

namespace moe::model {

// Expert-parallel group of this process and options of its dispatcher.
struct ExpertParallel {
  distributed::Comm* group = nullptr;  // the G processes; must outlive every forward and backward
  distributed::Layout layout = {};     // G = 1: all experts are local and `group` is not used
  // Runs the experts on local rows during the all-to-all, in a separate product.
  bool overlap_all_to_all = false;
  // Copies the tokens per expert to the host even if make_fixed_layout() could avoid it. For tests.
  bool force_host_counts = false;

  int64_t size() const { return layout.group(); }
  int64_t ep_rank() const { return layout.ep_rank(); }
};

// Partition of the tokens of one forward over the logical ranks of all processes.
struct TokenPartition {
  // For a single process.
  TokenPartition(route::RoutingGroup local_tokens);  // NOLINT: implicit conversion is intended
  // Assigns token v of this process's `tokens` to number floor(v (W/G) / tokens) of its W/G logical
  // ranks. A collective of the group, also for processes without tokens. `sequences` is the
  // number of sequences of this process if their balance loss is computed, else 0.
  TokenPartition(int64_t tokens, int64_t logical_ranks, const ExpertParallel& expert_parallel,
                 int64_t sequences = 0);

  bool is_expert_parallel() const { return parallel.size() > 1; }

  route::RoutingGroup local;         // tokens of this process; ranks are numbered over all W
  std::vector<int64_t> rank_tokens;  // [W], T_r of all logical ranks
  // Factor from a mean over the logical ranks of this process to its term of the mean over the
  // group: nonempty logical ranks of this process / of the group.
  double loss_scale = 1;
  double sequence_scale = 1;  // as loss_scale, for a mean over sequences
  ExpertParallel parallel = {};
};

// Layout of one plan, whose rows are sorted by expert. Rows of the experts of this process,
// including all IR rows, are local; the others are remote. With a capacity, the send buffer has C_r
// slots for each remote expert and local logical rank, so that the tokens per rank determine all
// sizes; unused slots are zeros. Dropless routers exchange the counts first and send only rows of
// the plan.
struct DispatchLayout {
  std::vector<int64_t> send_counts, receive_counts;  // [G] rows to and from each process
  int64_t remote_rows = 0;                           // sum of send_counts
  int64_t local_rows = 0;  // rows of the plan at the experts of this process
  at::Tensor permutation;  // [R] i64, index of each row of the plan in [remote rows | local rows]
  std::vector<int64_t> local_tokens_per_expert;                  // [L] of the local rows
  std::vector<std::vector<int64_t>> received_tokens_per_expert;  // [G][L] of received rows
  bool has_padding = false;  // remote and received rows include empty slots
  // [G, E] i64 on the device of the plan: the rows of each process at each expert. With a capacity,
  // other processes have the number of slots instead; in fixed layouts, this process too.
  at::Tensor process_rows;
  // [L] i64 on a GPU, of fixed layouts only: the tokens per local expert. local_rows is then an
  // upper bound, and local_tokens_per_expert all zeros.
  at::Tensor local_counts;
};

// Returns the layout of a plan with a capacity and tokens_per_expert [E] rows.
DispatchLayout make_dispatch_layout(const route::Routing& routing, const TokenPartition& partition,
                                    const route::RouterSettings& router,
                                    const std::vector<int64_t>& tokens_per_expert);

// Returns the layout of a plan with a capacity on a GPU (a fixed layout), without a copy to the
// host. Remote rows are those of make_dispatch_layout(), local rows at most the slots of the local
// experts and the tokens with IR. Unused rows have index remote_rows + local_rows.
DispatchLayout make_fixed_layout(const route::Routing& routing, const TokenPartition& partition,
                                 const route::RouterSettings& router);

// Returns the layout of the plan of a dropless router. A collective of the group. Exchanges the
// tokens per expert and waits for them. Calls on_permutation(DispatchLayout::permutation) before it
// waits if R is known without waiting (top-k: k rows per token), so that a GPU computes meanwhile.
DispatchLayout make_dropless_layout(
    const route::Routing& routing, const ExpertParallel& parallel,
    const std::function<void(const at::Tensor& permutation)>& on_permutation);

// Rows of the local experts in the order of a single process: by expert, logical rank and slot,
// with IR rows after the slots of their logical rank.
struct ExpertOrder {
  kernels::Permutation permutation;  // of [received rows | local rows]
  kernels::Segments segments;        // of the L local experts
};

// Returns the order of `rows`, the received rows [sum of receive_counts, D] and, if `with_local`,
// the local rows. On the CPU leaves out empty slots.
ExpertOrder order_by_expert(const DispatchLayout& layout, const at::Tensor& rows, int64_t ep_rank,
                            bool with_local);

// Returns the order of the local rows and, if `with_received`, the received rows of a fixed layout,
// in segments on the GPU that start at multiples of 8 rows.
ExpertOrder order_in_segments(const DispatchLayout& layout, int64_t ep_rank, bool with_received);

}  // namespace moe::model
