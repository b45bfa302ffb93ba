#include "core/model/moe/dispatch_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/error.h"
#include "core/model/moe/shadowed_experts.h"
#include "core/route/rows.h"

namespace moe::model {

using at::Tensor;

namespace {

using Numbers = std::vector<int64_t>;

int64_t sum_of(const Numbers& numbers, int64_t begin, int64_t end) {
  return std::accumulate(numbers.begin() + begin, numbers.begin() + end, int64_t{0});
}

// [begin, end) of the experts here among all, and of their rows among the plan's.
struct Here {
  Here(const ExpertParallel& parallel, const Numbers& loads)
      : experts(static_cast<int64_t>(loads.size()) / parallel.size()),
        first_expert(parallel.place() * experts),
        begin(sum_of(loads, 0, first_expert)),
        end(sum_of(loads, 0, first_expert + experts)),
        rows(sum_of(loads, 0, static_cast<int64_t>(loads.size()))) {}

  bool has(int64_t expert) const {
    return expert >= first_expert && expert < first_expert + experts;
  }

  int64_t experts, first_expert;
  int64_t begin, end, rows;
};

// [R]: rows that stay stand behind `away` others, in order; `elsewhere` [R] says where those stand.
Tensor with_home_rows(const Tensor& elsewhere, const Here& here, int64_t away) {
  const Tensor home = at::arange(away, away + here.end - here.begin, elsewhere.options());
  return at::cat({elsewhere.narrow(0, 0, here.begin), home,
                  elsewhere.narrow(0, here.end, here.rows - here.end)});
}

// [R] i64: the slot of each row among the buffers of all experts but those here; what it says of
// rows that stay means nothing. `capacity` [W], `slots_here`: its sum over the ranks with tokens
// here.
Tensor buffer_slots(const route::Routing& routing, const Here& here, const Numbers& capacity,
                    int64_t slots_here) {
  const route::RouteInput& input = routing.input;
  const route::Rows rows = {routing.plan.token.narrow(0, 0, here.rows),
                            routing.plan.expert.narrow(0, 0, here.rows),
                            {},
                            {}};
  Numbers before;  // slots of an expert that belong to lower ranks of this process
  int64_t filled = 0;
  for (size_t rank = 0; rank < capacity.size(); ++rank) {
    before.push_back(filled);
    filled += input.rank_tokens[rank] > 0 ? capacity[rank] : 0;
  }
  const Tensor first_slot = at::tensor(before, at::kLong).to(rows.token.device());
  const Tensor home = input.home.index_select(0, rows.token);
  const Tensor slot = route::slots_of(input, route::groups_of(input, rows));
  const Tensor buffer =
      rows.expert - (rows.expert >= here.first_expert + here.experts) * here.experts;
  return buffer * slots_here + first_slot.index_select(0, home) + slot;
}

void plan_slots(const route::Routing& routing, const Sharing& sharing, const Here& here,
                const Numbers& capacity, TravelPlan& plan) {
  const ExpertParallel& parallel = sharing.spread.parallel;
  const auto local_ranks = static_cast<int64_t>(capacity.size()) / parallel.size();
  for (int64_t place = 0; place < parallel.size(); ++place) {
    const bool is_other = place != parallel.place();
    const int64_t slots = sum_of(capacity, place * local_ranks, (place + 1) * local_ranks);
    plan.received_loads.emplace_back(here.experts, is_other ? slots : 0);
    plan.received.push_back(is_other ? here.experts * slots : 0);
  }
  const int64_t first_rank = parallel.place() * local_ranks;
  const int64_t slots_here = sum_of(capacity, first_rank, first_rank + local_ranks);
  plan.sent.assign(parallel.size(), here.experts * slots_here);
  plan.sent[parallel.place()] = 0;
  plan.away = (parallel.size() - 1) * here.experts * slots_here;
  plan.place = with_home_rows(buffer_slots(routing, here, capacity, slots_here), here, plan.away);
  plan.has_padding = true;
}

// The places of a plan's rows: those of experts here and of borrowed ones behind `plan.away`.
Tensor places_of_rows(const Here& here, const Numbers& loads, const TravelPlan& plan) {
  int64_t next_away = 0, next_home = plan.away, next_borrowed = plan.away + plan.home;
  Numbers places;
  places.reserve(static_cast<size_t>(here.rows));
  for (size_t expert = 0; expert < loads.size(); ++expert) {
    const bool is_lent = std::binary_search(plan.lent.begin(), plan.lent.end(), expert);
    int64_t& next = here.has(static_cast<int64_t>(expert)) ? next_home
                    : is_lent                              ? next_borrowed
                                                           : next_away;
    for (int64_t row = 0; row < loads[expert]; ++row) {
      places.push_back(next++);
    }
  }
  return at::tensor(places, at::kLong);
}

void plan_rows(const Sharing& sharing, const Here& here, const Numbers& loads, bool may_lend,
               TravelPlan& plan) {
  const ExpertParallel& parallel = sharing.spread.parallel;
  std::vector<Numbers> wanted = dist::gather_numbers(*parallel.group, loads);
  if (may_lend && parallel.lends) {
    plan.lent = choose_lent(wanted);
  }
  for (const int64_t expert : plan.lent) {
    if (!here.has(expert)) {
      plan.borrowed_loads.push_back(loads[expert]);
      plan.borrowed += loads[expert];
    }
    for (Numbers& of_place : wanted) {
      of_place[expert] = 0;  // from here on: rows that travel
    }
  }
  const Numbers& mine = wanted[parallel.place()];
  for (int64_t place = 0; place < parallel.size(); ++place) {
    const bool is_other = place != parallel.place();
    const auto first = wanted[place].begin() + here.first_expert;
    plan.received_loads.push_back(is_other ? Numbers(first, first + here.experts)
                                           : Numbers(here.experts, 0));
    plan.received.push_back(sum_of(plan.received_loads.back(), 0, here.experts));
    plan.sent.push_back(is_other ? sum_of(mine, place * here.experts, (place + 1) * here.experts)
                                 : 0);
  }
  plan.away = here.rows - plan.home - plan.borrowed;
  plan.place = places_of_rows(here, loads, plan).to(parallel.group->device());
}

// Rows that are not all zero bits. A zero row needs no expert: its products are 0, silu(0) * 0 = 0
// and down's product of that is 0; in backward d hidden holds a factor up = 0 or gate = 0 in every
// element, so its row and its part of every weight's gradient are 0 too. Whether it was padding or
// a token makes no difference.
std::vector<bool> used_rows(const Tensor& rows) {
  const auto width = static_cast<size_t>(rows.size(1) * rows.element_size());
  const auto* row = static_cast<const char*>(rows.const_data_ptr());
  std::vector<bool> used(static_cast<size_t>(rows.size(0)));
  for (size_t index = 0; index < used.size(); ++index, row += width) {
    // All bytes equal their successors and the first is 0. Rows of tokens differ at once.
    used[index] = width > 0 && (row[0] != 0 || std::memcmp(row, row + 1, width - 1) != 0);
  }
  return used;
}

}  // namespace

TravelPlan plan_travel(const route::Routing& routing, const Sharing& sharing,
                       const std::vector<int64_t>& loads, bool may_lend) {
  const Here here(sharing.spread.parallel, loads);
  TravelPlan plan;
  plan.home = here.end - here.begin;
  plan.home_loads.assign(loads.begin() + here.first_expert,
                         loads.begin() + here.first_expert + here.experts);
  if (const Numbers capacity = sharing.capacity(static_cast<int64_t>(loads.size()));
      !capacity.empty()) {
    plan_slots(routing, sharing, here, capacity, plan);
  } else {
    plan_rows(sharing, here, loads, may_lend, plan);
  }
  return plan;
}

ExpertOrder order_by_expert(const TravelPlan& plan, const Tensor& received, int64_t this_place,
                            bool with_home) {
  const std::vector<bool> used = plan.has_padding && received.is_cpu()
                                     ? used_rows(received)
                                     : std::vector<bool>(received.size(0), true);
  std::vector<int64_t> next;  // the next row of each process
  int64_t first = 0;
  for (const int64_t rows : plan.received) {
    next.push_back(first);
    first += rows;
  }
  int64_t next_home = first;
  Numbers index, loads;
  for (size_t expert = 0; expert < plan.home_loads.size(); ++expert) {
    const size_t before = index.size();
    for (size_t place = 0; place < next.size(); ++place) {
      for (int64_t row = 0; row < plan.received_loads[place][expert]; ++row, ++next[place]) {
        if (used[static_cast<size_t>(next[place])]) {
          index.push_back(next[place]);
        }
      }
      const bool is_here = static_cast<int64_t>(place) == this_place;
      for (int64_t row = 0; with_home && is_here && row < plan.home_loads[expert]; ++row) {
        index.push_back(next_home++);
      }
    }
    loads.push_back(static_cast<int64_t>(index.size() - before));
  }
  return {at::tensor(index, at::kLong).to(received.device()), std::move(loads)};
}

}  // namespace moe::model
