#include "core/model/moe/dispatch_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/error.h"
#include "core/route/rows.h"

namespace moe::model {

using at::Tensor;

namespace {

using Counts = std::vector<int64_t>;

int64_t sum_of(const Counts& counts, int64_t begin, int64_t end) {
  return std::accumulate(counts.begin() + begin, counts.begin() + end, int64_t{0});
}

// The experts of this process among all E, and their rows among those of the plan.
struct LocalExperts {
  LocalExperts(const ExpertParallel& parallel, const Counts& tokens_per_expert)
      : count(static_cast<int64_t>(tokens_per_expert.size()) / parallel.size()),
        first(parallel.ep_rank() * count),
        row_begin(sum_of(tokens_per_expert, 0, first)),
        row_end(sum_of(tokens_per_expert, 0, first + count)),
        all_rows(sum_of(tokens_per_expert, 0, static_cast<int64_t>(tokens_per_expert.size()))) {}

  bool has(int64_t expert) const { return expert >= first && expert < first + count; }

  int64_t count, first;
  int64_t row_begin, row_end;  // [row_begin, row_end) of the plan's rows
  int64_t all_rows;            // R
};

// [W] C_r of every logical rank; empty for dropless routers.
Counts slots_per_rank(const route::Routing& routing, const TokenSpread& spread,
                      const route::RouterSettings& router, int64_t experts) {
  Counts slots;
  if (!routing.input.dropless) {
    for (const int64_t tokens : spread.rank_tokens) {
      slots.push_back(route::capacity_slots(router.capacity_factor, tokens, experts));
    }
  }
  return slots;
}

// [R]: local rows stand behind `remote_rows` others, in order; `remote` [R] says where those stand.
Tensor with_local_rows(const Tensor& remote, const LocalExperts& experts, int64_t remote_rows) {
  const int64_t local_rows = experts.row_end - experts.row_begin;
  const Tensor local = at::arange(remote_rows, remote_rows + local_rows, remote.options());
  return at::cat({remote.narrow(0, 0, experts.row_begin), local,
                  remote.narrow(0, experts.row_end, experts.all_rows - experts.row_end)});
}

// [n] i64: the slot of each of `rows`, which are sorted by group, where expert after expert has
// `local_slots` of them, the sum of those of this process in `slots` [W] (slots_per_rank).
// `buffer` [n]: which expert's, counted in that order. The entries of unused rows mean nothing.
Tensor slots_in_buffers(const route::RouteInput& input, const route::Rows& rows,
                        const Tensor& buffer, const Counts& slots, int64_t local_slots) {
  Counts slots_before;  // slots of an expert that belong to lower ranks of this process
  int64_t next = 0;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    slots_before.push_back(next);
    next += input.rank_tokens[rank] > 0 ? slots[rank] : 0;
  }
  slots_before.push_back(0);  // of padding, which an unused row may name
  const Tensor first_slot = at::tensor(slots_before, at::kLong).to(rows.token.device());
  const Tensor home = input.home.index_select(0, rows.token);
  const Tensor slot = route::slots_of(input, route::groups_of(input, rows));
  return buffer * local_slots + first_slot.index_select(0, home) + slot;
}

// [G] the slots that each process has at an expert, of `slots` [W].
Counts slots_of_processes(const ExpertParallel& parallel, const Counts& slots) {
  const auto local_ranks = static_cast<int64_t>(slots.size()) / parallel.size();
  Counts of_processes;
  for (int64_t process = 0; process < parallel.size(); ++process) {
    of_processes.push_back(sum_of(slots, process * local_ranks, (process + 1) * local_ranks));
  }
  return of_processes;
}

// What goes to and comes from each process where each has `of_processes` [G] slots at an expert, of
// which every process holds `experts`.
void count_slots(const ExpertParallel& parallel, int64_t experts, const Counts& of_processes,
                 DispatchLayout& layout) {
  for (int64_t process = 0; process < parallel.size(); ++process) {
    const int64_t incoming = process == parallel.ep_rank() ? 0 : of_processes[process];
    layout.received_tokens_per_expert.emplace_back(experts, incoming);
    layout.receive_counts.push_back(experts * incoming);
  }
  const int64_t local_slots = of_processes[parallel.ep_rank()];
  layout.send_counts.assign(parallel.size(), experts * local_slots);
  layout.send_counts[parallel.ep_rank()] = 0;
  layout.remote_rows = (parallel.size() - 1) * experts * local_slots;
  layout.has_padding = true;
}

// Of a router with a capacity: buffers whose sizes follow from the tokens per rank.
void lay_out_slots(const route::Routing& routing, const ExpertParallel& parallel,
                   const LocalExperts& experts, const Counts& slots, DispatchLayout& layout) {
  const Counts of_processes = slots_of_processes(parallel, slots);
  count_slots(parallel, experts.count, of_processes, layout);
  const route::Rows rows = {routing.plan.token.narrow(0, 0, experts.all_rows),
                            routing.plan.expert.narrow(0, 0, experts.all_rows),
                            {},
                            {}};
  const Tensor buffer =
      rows.expert - (rows.expert >= experts.first + experts.count) * experts.count;
  const Tensor slot =
      slots_in_buffers(routing.input, rows, buffer, slots, of_processes[parallel.ep_rank()]);
  layout.permutation = with_local_rows(slot, experts, layout.remote_rows);
}

// Returns the permutation [R] i64 of a dropless router's rows: remote rows first, then local rows.
Tensor permutation_of_rows(const LocalExperts& experts, const Counts& tokens_per_expert,
                           const DispatchLayout& layout) {
  int64_t next_remote = 0, next_local = layout.remote_rows;
  Counts permutation;
  permutation.reserve(static_cast<size_t>(experts.all_rows));
  for (size_t expert = 0; expert < tokens_per_expert.size(); ++expert) {
    int64_t& next = experts.has(static_cast<int64_t>(expert)) ? next_local : next_remote;
    for (int64_t row = 0; row < tokens_per_expert[expert]; ++row) {
      permutation.push_back(next++);
    }
  }
  return at::tensor(permutation, at::kLong);
}

// What goes to and comes from each process by `counts` [G][E], the rows that travel.
void count_rows(const ExpertParallel& parallel, const LocalExperts& experts,
                const std::vector<Counts>& counts, DispatchLayout& layout) {
  const Counts& sent = counts[parallel.ep_rank()];
  for (int64_t process = 0; process < parallel.size(); ++process) {
    const bool is_other = process != parallel.ep_rank();
    const auto first = counts[process].begin() + experts.first;
    layout.received_tokens_per_expert.push_back(is_other ? Counts(first, first + experts.count)
                                                         : Counts(experts.count, 0));
    layout.receive_counts.push_back(
        sum_of(layout.received_tokens_per_expert.back(), 0, experts.count));
    layout.send_counts.push_back(
        is_other ? sum_of(sent, process * experts.count, (process + 1) * experts.count) : 0);
  }
  layout.remote_rows = experts.all_rows - layout.local_rows;
}

// Of a dropless router: processes tell each other how many rows they send.
void lay_out_rows(const ExpertParallel& parallel, const LocalExperts& experts,
                  const Counts& tokens_per_expert, DispatchLayout& layout) {
  const auto counts = distributed::gather_numbers(*parallel.group, tokens_per_expert);  // [G][E]
  count_rows(parallel, experts, counts, layout);
  layout.permutation =
      permutation_of_rows(experts, tokens_per_expert, layout).to(parallel.group->device());
}

// [0, c0, c0 + c1, ..] of counts [n].
Tensor exclusive_sums(const Tensor& counts) { return counts.cumsum(0) - counts; }

// [n] i64 into [received rows | local rows] as order_by_expert makes it, by the counts on a GPU:
// nothing is copied there. A block is what one process sent for one expert.
Tensor order_on_gpu(const DispatchLayout& layout, int64_t ep_rank, bool with_local, int64_t rows) {
  const auto local = static_cast<int64_t>(layout.local_tokens_per_expert.size());
  const Tensor of_processes = layout.rows_of_processes.narrow(1, ep_rank * local, local);  // [G, L]
  Tensor blocks = of_processes.clone();
  blocks.select(0, ep_rank).zero_();  // received
  Tensor first = exclusive_sums(blocks.view({-1})).view_as(blocks);
  if (with_local) {  // behind all that are received
    const Tensor own = of_processes.select(0, ep_rank);
    first.select(0, ep_rank).copy_(exclusive_sums(own) + blocks.sum());
    blocks.select(0, ep_rank).copy_(own);
  }
  const Tensor by_expert = blocks.t().reshape({-1});  // [L * G], in the order of the result
  const Tensor ends = by_expert.cumsum(0);
  const Tensor row = at::arange(rows, ends.options());
  const Tensor block = at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true);
  const Tensor shift = first.t().reshape({-1}) - (ends - by_expert);
  return row + shift.index_select(0, block);
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

DispatchLayout make_dispatch_layout(const route::Routing& routing, const TokenSpread& spread,
                                    const route::RouterSettings& router,
                                    const std::vector<int64_t>& tokens_per_expert) {
  const ExpertParallel& parallel = spread.parallel;
  const LocalExperts experts(parallel, tokens_per_expert);
  DispatchLayout layout;
  layout.local_rows = experts.row_end - experts.row_begin;
  layout.local_tokens_per_expert.assign(tokens_per_expert.begin() + experts.first,
                                        tokens_per_expert.begin() + experts.first + experts.count);
  const Counts slots =
      slots_per_rank(routing, spread, router, static_cast<int64_t>(tokens_per_expert.size()));
  if (!slots.empty()) {
    lay_out_slots(routing, parallel, experts, slots, layout);
  } else {
    lay_out_rows(parallel, experts, tokens_per_expert, layout);
  }
  return layout;
}

DispatchLayout make_fixed_layout(const route::Routing& routing, const TokenSpread& spread,
                                 const route::RouterSettings& router) {
  const ExpertParallel& parallel = spread.parallel;
  const int64_t all = routing.input.experts(), count = all / parallel.size();
  const int64_t first = parallel.ep_rank() * count;
  const Counts slots = slots_per_rank(routing, spread, router, all);
  const Counts of_processes = slots_of_processes(parallel, slots);
  const int64_t local_slots = of_processes[parallel.ep_rank()];
  DispatchLayout layout;
  count_slots(parallel, count, of_processes, layout);
  const route::Rows rows = route::rows_of(routing.plan);
  const int64_t rectified = router.ir ? routing.input.tokens() : 0;
  layout.local_rows = std::min(rows.token.size(0), count * local_slots + rectified);
  layout.local_tokens_per_expert.assign(static_cast<size_t>(count), 0);
  layout.local_counts = routing.plan.rows.narrow(0, first, count);
  layout.rows_of_processes = at::empty({parallel.size(), all}, routing.plan.rows.options());
  for (int64_t process = 0; process < parallel.size(); ++process) {
    layout.rows_of_processes.select(0, process).fill_(of_processes[process]);
  }
  const Tensor is_behind = rows.expert >= first + count;
  const Tensor remote =
      slots_in_buffers(routing.input, rows, rows.expert - is_behind * count, slots, local_slots);
  const Tensor row = at::arange(rows.token.size(0), rows.token.options());
  const Tensor local = row - routing.plan.rows.narrow(0, 0, first).sum() + layout.remote_rows;
  const Tensor is_local = at::logical_and(rows.expert >= first, is_behind.logical_not());
  layout.permutation = at::where(is_local, local, remote)
                           .masked_fill(rows.expert == all, layout.remote_rows + layout.local_rows);
  return layout;
}

DispatchLayoutOnGpu::DispatchLayoutOnGpu(const route::Routing& routing,
                                         const ExpertParallel& parallel)
    : parallel_(parallel),
      all_(at::empty({parallel.size(), routing.plan.rows.size(0)}, routing.plan.rows.options())),
      on_host_([&] {
        parallel.group->all_gather(routing.plan.rows.contiguous(), all_.view({-1}));
        return kernels::HostCopy(all_);
      }()) {
  MOE_CHECK(routing.input.dropless && routing.plan.rows.is_cuda());
  const int64_t room = routing.plan.token.size(0);
  if (routing.counters.tokens_request && routing.counters.host_values.requests == room) {
    known_rows_ = room;  // every token has all of its choices, and there is room for no more
  }
}

// Rows before and behind those of the local experts travel and close up; the local ones stand last.
Tensor DispatchLayoutOnGpu::permutation(int64_t rows) const {
  const int64_t count = all_.size(1) / parallel_.size(), first = parallel_.ep_rank() * count;
  const Tensor own = all_.select(0, parallel_.ep_rank());
  const Tensor begin = own.narrow(0, 0, first).sum();  // []
  const Tensor end = begin + own.narrow(0, first, count).sum();
  const Tensor row = at::arange(rows, all_.options());
  const Tensor is_before = row < begin, is_behind = row >= end;
  const Tensor remote = at::where(is_before, row, row - (end - begin));
  return at::where(at::logical_or(is_before, is_behind), remote, row + (rows - end));
}

DispatchLayout DispatchLayoutOnGpu::wait() {
  parallel_.group->synchronize();
  const Tensor& host = on_host_.get();
  std::vector<Counts> counts;
  for (int64_t process = 0; process < parallel_.size(); ++process) {
    const Tensor row = host.select(0, process);
    counts.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  const LocalExperts experts(parallel_, counts[parallel_.ep_rank()]);
  rows_ = experts.all_rows;
  MOE_CHECK(rows_ == known_rows_.value_or(rows_), "{} rows, not {}", rows_,
            known_rows_.value_or(-1));
  DispatchLayout layout;
  const auto first = counts[parallel_.ep_rank()].begin() + experts.first;
  layout.local_tokens_per_expert.assign(first, first + experts.count);
  layout.local_rows = experts.row_end - experts.row_begin;
  layout.rows_of_processes = all_;
  count_rows(parallel_, experts, counts, layout);
  return layout;
}

ExpertOrder order_by_expert(const DispatchLayout& layout, const Tensor& received, int64_t ep_rank,
                            bool with_local) {
  if (layout.rows_of_processes.defined()) {
    Counts tokens_per_expert = with_local ? layout.local_tokens_per_expert
                                          : Counts(layout.local_tokens_per_expert.size(), 0);
    for (const Counts& of_process : layout.received_tokens_per_expert) {
      for (size_t expert = 0; expert < tokens_per_expert.size(); ++expert) {
        tokens_per_expert[expert] += of_process[expert];
      }
    }
    const int64_t rows =
        std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
    return {order_on_gpu(layout, ep_rank, with_local, rows), std::move(tokens_per_expert)};
  }
  const std::vector<bool> used = layout.has_padding && received.is_cpu()
                                     ? used_rows(received)
                                     : std::vector<bool>(received.size(0), true);
  std::vector<int64_t> next;  // the next row of each process
  int64_t first = 0;
  for (const int64_t rows : layout.receive_counts) {
    next.push_back(first);
    first += rows;
  }
  int64_t next_local = first;
  Counts permutation, tokens_per_expert;
  for (size_t expert = 0; expert < layout.local_tokens_per_expert.size(); ++expert) {
    const size_t before = permutation.size();
    for (size_t process = 0; process < next.size(); ++process) {
      const int64_t rows = layout.received_tokens_per_expert[process][expert];
      for (int64_t row = 0; row < rows; ++row, ++next[process]) {
        if (used[static_cast<size_t>(next[process])]) {
          permutation.push_back(next[process]);
        }
      }
      const bool is_local = static_cast<int64_t>(process) == ep_rank;
      for (int64_t row = 0; with_local && is_local && row < layout.local_tokens_per_expert[expert];
           ++row) {
        permutation.push_back(next_local++);
      }
    }
    tokens_per_expert.push_back(static_cast<int64_t>(permutation.size() - before));
  }
  return {at::tensor(permutation, at::kLong).to(received.device()), std::move(tokens_per_expert)};
}

SegmentOrder order_in_segments(const DispatchLayout& layout, int64_t ep_rank, bool with_received) {
  const Tensor& own = layout.local_counts;  // [L]
  const int64_t experts = own.size(0);
  const int64_t processes =
      with_received ? static_cast<int64_t>(layout.receive_counts.size()) : int64_t{1};
  const int64_t own_column = with_received ? ep_rank : 0;
  // Of a block, which is what one process sent for one expert, the rows and where they begin. The
  // blocks of an expert follow each other, and last a gap up to a multiple of 8.
  const Tensor blocks = at::zeros({processes + 1, experts}, own.options());
  const Tensor first = at::zeros_like(blocks);
  int64_t received = 0;
  for (int64_t process = 0; with_received && process < processes; ++process) {
    if (process != ep_rank) {
      const int64_t slots = layout.received_tokens_per_expert[process].front();  // as of all others
      blocks.select(0, process).fill_(slots);
      first.select(0, process).copy_(at::arange(experts, own.options()) * slots + received);
      received += layout.receive_counts[process];
    }
  }
  blocks.select(0, own_column).copy_(own);
  first.select(0, own_column).copy_(exclusive_sums(own) + received);
  const Tensor used = blocks.sum(0);  // [L]
  const Tensor whole = (used + (kernels::kSegmentRows - 1)).floor_divide(kernels::kSegmentRows) *
                       kernels::kSegmentRows;
  blocks.select(0, processes).copy_(whole - used);
  const Tensor by_expert = blocks.t().reshape({-1});  // [L * (G + 1)]
  const Tensor ends = by_expert.cumsum(0);
  const int64_t all = received + layout.local_rows;
  const Tensor row = at::arange(kernels::segmented_rows(all, experts), own.options());  // [P]
  const Tensor block = at::searchsorted(ends, row, /*out_int32=*/false, /*right=*/true)
                           .clamp_max(experts * (processes + 1) - 1);
  const Tensor shift = first.t().reshape({-1}) - (ends - by_expert);
  const Tensor is_gap = block.remainder(processes + 1) == processes;
  const Tensor index = row + shift.index_select(0, block);
  // Gaps are told to stand behind the last row, where they are cut off.
  const Tensor row_of_index = at::full({all + 1}, -1, own.options().dtype(at::kInt))
                                  .index_copy_(0, index.masked_fill(is_gap, all), row.to(at::kInt))
                                  .narrow(0, 0, all)
                                  .view({all, 1});
  const Tensor segments = whole.cumsum(0).to(at::kInt);
  return {{index.masked_fill(is_gap, -1), row_of_index, segments.narrow(0, experts - 1, 1), all, 1},
          segments};
}

}  // namespace moe::model
