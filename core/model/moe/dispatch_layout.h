#pragma once
// The dispatch layout of expert parallelism: how many rows go to and come from each process, and
// the permutations that put them into the send buffer and, on arrival, into expert order. Counts
// and indices on the host; nothing here touches a row. T tokens, E experts, R rows of a plan, G
// processes, W logical ranks, C_r slots of logical rank r at an expert.

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "core/model/moe/expert_parallel.h"
#include "core/route/route.h"
#include "kernels/ops/host_copy.h"
#include "kernels/ops/permutation.h"

namespace moe::model {

// Rows of a plan are sorted by expert: those before and behind the experts of this process travel,
// those between stay (IR rows among them, which never leave their rank).
//
// A router with a capacity sends buffers of [E - E/G, sum of the local C_r] rows: each (expert,
// logical rank) has its C_r slots, unused slots are zeros, and every size follows from the tokens
// per rank. Dropless routers send the rows they have and exchange the counts first.
struct DispatchLayout {
  std::vector<int64_t> send_counts, receive_counts;  // [G] rows to and from each process
  int64_t remote_rows = 0;                           // sum of send_counts
  int64_t local_rows = 0;                            // rows at the experts of this process
  // [R] i64: where each row of the plan stands in [remote rows | local rows].
  at::Tensor permutation;
  std::vector<int64_t> local_tokens_per_expert;                  // [E/G] of the local rows
  std::vector<std::vector<int64_t>> received_tokens_per_expert;  // [G][E/G] of received rows
  bool has_padding = false;                                      // received rows may be empty slots
  // [G, E] i64 on a GPU: the rows of each process, of dropless routers; its slots, of fixed
  // layouts.
  at::Tensor rows_of_processes;
  // [E/G] i64 on a GPU, of fixed layouts: what the host does not know, whose
  // local_tokens_per_expert are 0 and whose local_rows are the room for them.
  at::Tensor local_counts;
};

// A collective of the group for dropless routers, local for the others. `tokens_per_expert` [E] of
// this process.
DispatchLayout make_dispatch_layout(const route::Routing& routing, const TokenSpread& spread,
                                    const route::RouterSettings& router,
                                    const std::vector<int64_t>& tokens_per_expert);

// The same of a router with a capacity whose plan lies on a GPU: nothing is exchanged, and nothing
// read. What travels is what make_dispatch_layout sends, whose sizes the host knows. For rows at
// the local experts there is room, all slots of theirs and every token for rectification, which
// stands above capacity; how many there are stays on the GPU. The permutation [rows_max] has every
// row of the plan, unused ones behind the last of [remote rows | local rows].
DispatchLayout make_fixed_layout(const route::Routing& routing, const TokenSpread& spread,
                                 const route::RouterSettings& router);

// The same of a dropless router whose plan lies on a GPU, in two halves, so that the host has one
// number to wait for a layer, and the GPU has work meanwhile. The permutation needs no count of the
// host; what needs them is how much is sent to whom.
class DispatchLayoutOnGpu {
 public:
  // A collective of the group: the tokens per expert of every process are exchanged on the GPU, and
  // are on their way to the host.
  DispatchLayoutOnGpu(const route::Routing& routing, const ExpertParallel& parallel);

  // R, if the host knows it: top-k without a capacity has k rows a token.
  std::optional<int64_t> known_rows() const { return known_rows_; }
  // [rows] i64, the permutation of a plan of R = `rows`, without waiting.
  at::Tensor permutation(int64_t rows) const;
  // Waits. R is what it says in the end.
  DispatchLayout wait();
  int64_t rows() const { return rows_; }  // R, after wait()

 private:
  const ExpertParallel& parallel_;
  std::optional<int64_t> known_rows_;
  at::Tensor all_;  // [G, E] i64
  kernels::HostCopy on_host_;
  int64_t rows_ = 0;
};

// The rows that the local experts run, sorted by expert, in the order that one process alone would
// give them (by logical rank, then slot, IR rows last).
struct ExpertOrder {
  at::Tensor permutation;                  // [n] i64 into [received rows | local rows]
  std::vector<int64_t> tokens_per_expert;  // [E/G]
};

// Of `received` rows [sum of receive_counts, D] and, unless those run by themselves, of the local
// rows. On the CPU empty slots are left out.
ExpertOrder order_by_expert(const DispatchLayout& layout, const at::Tensor& received,
                            int64_t ep_rank, bool with_local);

// The same of a fixed layout, in segments that start at multiples of 8 rows, of the rows that
// `with_received` puts before the local ones.
struct SegmentOrder {
  kernels::Permutation permutation;  // of [received rows | local rows]
  at::Tensor ends;                   // [E/G] i32 on the GPU, of each expert's segment
};
SegmentOrder order_in_segments(const DispatchLayout& layout, int64_t ep_rank, bool with_received);

}  // namespace moe::model
