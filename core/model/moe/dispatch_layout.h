#pragma once
// Which rows of a plan go to which process, and in which order they are put together there. Host
// numbers and indices; nothing here touches a row. The letters are those of dispatch.h.

#include <ATen/ATen.h>

#include <vector>

#include "core/model/moe/expert_parallel.h"
#include "core/route/routers.h"

namespace moe::model {

// Rows of a plan lie by expert: those before and behind the experts of this process travel, those
// between (IR rows among them, which never leave their rank) stay.
//
// A router with a capacity fills buffers [E - E/G, sum of C_r here]: each (expert, logical rank)
// has its C_r slots, unused ones are zeros, and every size follows from the tokens per rank.
// Dropless routers send the rows they have and say how many first; rows at experts that are lent
// (lent_experts.h) stay too.
struct TravelPlan {
  std::vector<int64_t> sent, received;  // [G] rows to and from each process; 0 for this one
  int64_t away = 0;                     // sum of sent
  int64_t home = 0;                     // rows that stay
  int64_t borrowed = 0;                 // rows that stay for experts of others
  // [R] i64: where each row of the plan stands in [sent rows | rows that stay | rows at borrowed]
  at::Tensor place;
  std::vector<int64_t> home_loads;                   // [E/G] rows that stay, by expert
  std::vector<std::vector<int64_t>> received_loads;  // [G][E/G] rows received, by expert
  std::vector<int64_t> lent;                         // experts, ascending
  std::vector<int64_t> borrowed_loads;               // rows by expert: those lent by others
  bool has_padding = false;                          // received rows may be empty slots
};

// A collective of the group for dropless routers, none for the others. `loads` [E]. `may_lend`:
// what the experts are allows it.
TravelPlan plan_travel(const route::Routing& routing, const Sharing& sharing,
                       const std::vector<int64_t>& loads, bool may_lend = false);

// The rows that the experts here run, sorted by expert, in the order of one process: `index` [n]
// i64 into [received rows | rows that stay], loads [E/G].
struct ExpertOrder {
  at::Tensor index;
  std::vector<int64_t> loads;
};

// Of `received` rows [sum of plan.received, D] and, unless those are run by themselves, of the rows
// that stay. On the CPU empty slots are left out.
ExpertOrder order_by_expert(const TravelPlan& plan, const at::Tensor& received, int64_t this_place,
                            bool with_home);

}  // namespace moe::model
