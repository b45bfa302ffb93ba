#include "core/model/moe/dispatch_layout.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "core/base/error.h"
#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/device.h"

namespace moe::model {
namespace {

using at::Tensor;

using Counts = std::vector<int64_t>;

int64_t count_nonempty(const Counts& rank_tokens) {
  return std::count_if(rank_tokens.begin(), rank_tokens.end(),
                       [](int64_t tokens) { return tokens > 0; });
}

Counts count_by_rank(const route::RoutingGroup& group) {
  Counts counts(group.ranks, 0);
  for (const int64_t source_rank : group.source_rank) {
    if (source_rank >= 0) {
      ++counts.at(source_rank);
    }
  }
  return counts;
}

int64_t sum_range(const Counts& counts, int64_t begin, int64_t end) {
  return std::accumulate(counts.begin() + begin, counts.begin() + end, int64_t{0});
}

// Experts of this process and the range of their rows in the plan.
struct LocalExperts {
  LocalExperts(const ExpertParallel& parallel, const Counts& tokens_per_expert)
      : count(std::ssize(tokens_per_expert) / parallel.size()),
        first(parallel.ep_rank() * count),
        row_begin(sum_range(tokens_per_expert, 0, first)),
        row_end(sum_range(tokens_per_expert, 0, first + count)),
        all_rows(sum_range(tokens_per_expert, 0, std::ssize(tokens_per_expert))) {}

  int64_t count, first;
  int64_t row_begin, row_end;  // [row_begin, row_end) of the plan's rows
  int64_t all_rows;            // R
};

// Returns C_r of every logical rank [W] of a router with a capacity.
Counts slots_per_rank(const TokenPartition& partition, const route::RouterSettings& router,
                      int64_t experts) {
  Counts slots;
  for (const int64_t tokens : partition.rank_tokens) {
    slots.push_back(route::capacity_slots(router.capacity_factor, tokens, experts));
  }
  return slots;
}

// Returns the index [n] i64 of each of `rows`, sorted by group, in the send buffer, which has
// `local_slots` slots per remote expert. Undefined for local and unused rows.
// buffer [n]: index of the row's expert among the remote experts. slots [W]: slots_per_rank().
Tensor slots_in_buffers(const route::RouteInput& input, const route::Rows& rows,
                        const Tensor& buffer, const Counts& slots, int64_t local_slots) {
  Counts slots_before;  // per expert, of the lower logical ranks of this process
  int64_t next = 0;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    slots_before.push_back(next);
    next += input.rank_tokens[rank] > 0 ? slots[rank] : 0;
  }
  slots_before.push_back(0);  // of padding: token 0, to which unused rows refer, may be padding
  const Tensor first_slot = at::tensor(slots_before, at::kLong).to(rows.token.device());
  const Tensor source_rank = input.source_rank.index_select(0, rows.token);
  const Tensor slot = route::slot_indices(input, route::row_groups(input, rows));
  return buffer * local_slots + first_slot.index_select(0, source_rank) + slot;
}

// Returns the number of slots per expert of each process [G]: sums of `slots` [W] over its ranks.
Counts process_slots(const ExpertParallel& parallel, const Counts& slots) {
  const auto local_ranks = std::ssize(slots) / parallel.size();
  Counts per_process;
  for (int64_t process = 0; process < parallel.size(); ++process) {
    per_process.push_back(sum_range(slots, process * local_ranks, (process + 1) * local_ranks));
  }
  return per_process;
}

// Sets the counts of a layout with a capacity: per_process [G] is process_slots(), `experts` is L.
void set_slot_counts(const ExpertParallel& parallel, int64_t experts, const Counts& per_process,
                     const route::Plan& plan, DispatchLayout& layout) {
  layout.process_rows = at::empty({parallel.size(), plan.rows.size(0)}, plan.rows.options());
  for (int64_t process = 0; process < parallel.size(); ++process) {
    layout.process_rows.select(0, process).fill_(per_process[process]);
    const int64_t incoming = process == parallel.ep_rank() ? 0 : per_process[process];
    layout.received_tokens_per_expert.emplace_back(experts, incoming);
    layout.receive_counts.push_back(experts * incoming);
  }
  const int64_t local_slots = per_process[parallel.ep_rank()];
  layout.send_counts.assign(parallel.size(), experts * local_slots);
  layout.send_counts[parallel.ep_rank()] = 0;
  layout.remote_rows = (parallel.size() - 1) * experts * local_slots;
  layout.has_padding = true;
}

// Sets the counts of a dropless layout from counts[q][e], the rows of process q at expert e.
void set_row_counts(const ExpertParallel& parallel, const LocalExperts& experts,
                    const std::vector<Counts>& counts, DispatchLayout& layout) {
  const Counts& sent = counts[parallel.ep_rank()];
  for (int64_t process = 0; process < parallel.size(); ++process) {
    const bool is_other = process != parallel.ep_rank();
    const auto first = counts[process].begin() + experts.first;
    layout.received_tokens_per_expert.push_back(is_other ? Counts(first, first + experts.count)
                                                         : Counts(experts.count, 0));
    layout.receive_counts.push_back(
        sum_range(layout.received_tokens_per_expert.back(), 0, experts.count));
    layout.send_counts.push_back(
        is_other ? sum_range(sent, process * experts.count, (process + 1) * experts.count) : 0);
  }
  layout.remote_rows = experts.all_rows - layout.local_rows;
}

// Returns DispatchLayout::permutation [rows] of a dropless plan from all [G, E], the rows of each
// process at each expert: remote rows come first, without a gap, local rows last.
Tensor remote_rows_first(const Tensor& all, const ExpertParallel& parallel, int64_t rows) {
  const int64_t count = all.size(1) / parallel.size(), first = parallel.ep_rank() * count;
  const Tensor own = all.select(0, parallel.ep_rank());
  const Tensor begin = own.narrow(0, 0, first).sum();  // []
  const Tensor end = begin + own.narrow(0, first, count).sum();
  const Tensor row = at::arange(rows, all.options());
  const Tensor is_before = row < begin, is_after = row >= end;
  const Tensor remote = at::where(is_before, row, row - (end - begin));
  return at::where(at::logical_or(is_before, is_after), remote, row + (rows - end));
}

Tensor exclusive_sums(const Tensor& counts) { return counts.cumsum(0) - counts; }

// Returns ExpertOrder::permutation [rows] without copies from the host. A block is the rows that
// one process sent for one expert.
Tensor order_on_device(const DispatchLayout& layout, int64_t ep_rank, bool with_local,
                       int64_t rows) {
  const auto local = std::ssize(layout.local_tokens_per_expert);
  const Tensor per_process = layout.process_rows.narrow(1, ep_rank * local, local);  // [G, L]
  Tensor blocks = per_process.clone();
  blocks.select(0, ep_rank).zero_();  // received
  Tensor first = exclusive_sums(blocks.view({-1})).view_as(blocks);
  if (with_local) {  // after all received rows
    const Tensor own = per_process.select(0, ep_rank);
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

// Returns [rows] bool: true for each row that has a nonzero bit. A row of zeros needs no expert:
// its products and silu(0) * 0 are 0, and so are its gradient and its part of the weight gradients,
// whose elements have a factor up = 0 or silu(gate) = 0.
Tensor nonzero_rows(const Tensor& rows) {
  const auto width = static_cast<size_t>(rows.size(1) * rows.element_size());
  const auto* row = static_cast<const char*>(rows.const_data_ptr());
  Tensor result = at::empty({rows.size(0)}, at::kBool);
  for (bool& is_nonzero : std::span(result.data_ptr<bool>(), rows.size(0))) {
    // A row is zero if its first byte is 0 and every byte equals the next one.
    is_nonzero = width > 0 && (row[0] != 0 || std::memcmp(row, row + 1, width - 1) != 0);
    row += width;
  }
  return result;
}

}  // namespace

TokenPartition::TokenPartition(route::RoutingGroup local_tokens)
    : local(std::move(local_tokens)), rank_tokens(count_by_rank(local)) {}

TokenPartition::TokenPartition(int64_t tokens, int64_t logical_ranks,
                               const ExpertParallel& expert_parallel, int64_t sequences)
    : parallel(expert_parallel) {
  const int64_t processes = parallel.size();
  if (processes == 1) {
    *this = TokenPartition(route::partition_tokens(tokens, logical_ranks));
    parallel = expert_parallel;
    return;
  }
  MOE_CHECK(parallel.group != nullptr && parallel.group->size() == processes,
            "experts of {} processes, and no group of as many", processes);
  MOE_CHECK(logical_ranks % processes == 0, "{} logical ranks on {}", logical_ranks, processes);
  const int64_t local_ranks = logical_ranks / processes;
  const int64_t first_rank = parallel.ep_rank() * local_ranks;
  const route::RoutingGroup spread = route::partition_tokens(tokens, local_ranks);
  local.ranks = logical_ranks;
  for (const int64_t source_rank : spread.source_rank) {
    local.source_rank.push_back(first_rank + source_rank);
  }
  Counts own = count_by_rank(spread);
  const int64_t own_nonempty_ranks = count_nonempty(own);
  own.push_back(sequences);
  int64_t all_sequences = 0;
  for (const auto& counts : distributed::gather_numbers(*parallel.group, own)) {
    rank_tokens.insert(rank_tokens.end(), counts.begin(), counts.end() - 1);
    all_sequences += counts.back();
  }
  sequence_scale =
      all_sequences == 0 ? 0 : static_cast<double>(sequences) / static_cast<double>(all_sequences);
  const int64_t nonempty_ranks = count_nonempty(rank_tokens);
  loss_scale = nonempty_ranks == 0
                   ? 0
                   : static_cast<double>(own_nonempty_ranks) / static_cast<double>(nonempty_ranks);
}

DispatchLayout make_dispatch_layout(const route::Routing& routing, const TokenPartition& partition,
                                    const route::RouterSettings& router,
                                    const std::vector<int64_t>& tokens_per_expert) {
  const ExpertParallel& parallel = partition.parallel;
  const LocalExperts experts(parallel, tokens_per_expert);
  DispatchLayout layout;
  layout.local_rows = experts.row_end - experts.row_begin;
  layout.local_tokens_per_expert.assign(tokens_per_expert.begin() + experts.first,
                                        tokens_per_expert.begin() + experts.first + experts.count);
  const Counts slots = slots_per_rank(partition, router, std::ssize(tokens_per_expert));
  const Counts per_process = process_slots(parallel, slots);
  set_slot_counts(parallel, experts.count, per_process, routing.plan, layout);
  layout.process_rows.select(0, parallel.ep_rank()).copy_(routing.plan.rows);
  const route::Rows rows = {routing.plan.token.narrow(0, 0, experts.all_rows),
                            routing.plan.expert.narrow(0, 0, experts.all_rows),
                            {},
                            {}};
  const Tensor buffer =
      rows.expert - (rows.expert >= experts.first + experts.count) * experts.count;
  const Tensor slot =
      slots_in_buffers(routing.input, rows, buffer, slots, per_process[parallel.ep_rank()]);
  const Tensor local =
      at::arange(layout.remote_rows, layout.remote_rows + layout.local_rows, slot.options());
  layout.permutation =
      at::cat({slot.narrow(0, 0, experts.row_begin), local,
               slot.narrow(0, experts.row_end, experts.all_rows - experts.row_end)});
  return layout;
}

DispatchLayout make_fixed_layout(const route::Routing& routing, const TokenPartition& partition,
                                 const route::RouterSettings& router) {
  const ExpertParallel& parallel = partition.parallel;
  const int64_t all = routing.input.experts(), count = all / parallel.size();
  const int64_t first = parallel.ep_rank() * count;
  const Counts slots = slots_per_rank(partition, router, all);
  const Counts per_process = process_slots(parallel, slots);
  const int64_t local_slots = per_process[parallel.ep_rank()];
  DispatchLayout layout;
  set_slot_counts(parallel, count, per_process, routing.plan, layout);
  const route::Rows& rows = routing.plan;
  const int64_t rectified = router.ir ? routing.input.tokens() : 0;
  layout.local_rows = std::min(rows.token.size(0), count * local_slots + rectified);
  layout.local_tokens_per_expert.assign(count, 0);
  layout.local_counts = routing.plan.rows.narrow(0, first, count);
  const Tensor is_after = rows.expert >= first + count;
  const Tensor remote =
      slots_in_buffers(routing.input, rows, rows.expert - is_after * count, slots, local_slots);
  const Tensor row = at::arange(rows.token.size(0), rows.token.options());
  const Tensor local = row - routing.plan.rows.narrow(0, 0, first).sum() + layout.remote_rows;
  const Tensor is_local = at::logical_and(rows.expert >= first, is_after.logical_not());
  layout.permutation = at::where(is_local, local, remote)
                           .masked_fill(rows.expert == all, layout.remote_rows + layout.local_rows);
  return layout;
}

DispatchLayout make_dropless_layout(
    const route::Routing& routing, const ExpertParallel& parallel,
    const std::function<void(const Tensor& permutation)>& on_permutation) {
  MOE_CHECK(routing.input.is_dropless);
  const Tensor& own = routing.plan.rows;
  const Tensor all = at::empty({parallel.size(), own.size(0)}, own.options());
  parallel.group->all_gather(own.contiguous(), all.view({-1}));
  kernels::HostCopy on_host(all);
  DispatchLayout layout;
  const auto set_permutation = [&](int64_t rows) {
    layout.permutation = remote_rows_first(all, parallel, rows);
    on_permutation(layout.permutation);
  };
  const int64_t room = routing.plan.token.size(0);
  const bool is_full =  // every token has all of its choices
      routing.counters.has_token_requests && routing.counters.host_values.requests == room;
  if (is_full) {
    set_permutation(room);
  }
  parallel.group->synchronize();
  std::vector<Counts> counts;
  for (const Tensor& row : on_host.get().unbind()) {
    counts.emplace_back(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel());
  }
  const LocalExperts experts(parallel, counts[parallel.ep_rank()]);
  MOE_CHECK(!is_full || experts.all_rows == room, "{} rows, not {}", experts.all_rows, room);
  if (!is_full) {
    set_permutation(experts.all_rows);
  }
  const auto first = counts[parallel.ep_rank()].begin() + experts.first;
  layout.local_tokens_per_expert.assign(first, first + experts.count);
  layout.local_rows = experts.row_end - experts.row_begin;
  layout.process_rows = all;
  set_row_counts(parallel, experts, counts, layout);
  return layout;
}

ExpertOrder order_by_expert(const DispatchLayout& layout, const Tensor& rows, int64_t ep_rank,
                            bool with_local) {
  const int64_t all = rows.size(0), local = with_local ? layout.local_rows : 0;
  Counts tokens_per_expert = with_local ? layout.local_tokens_per_expert
                                        : Counts(layout.local_tokens_per_expert.size(), 0);
  for (const Counts& counts : layout.received_tokens_per_expert) {
    std::ranges::transform(tokens_per_expert, counts, tokens_per_expert.begin(), std::plus<>());
  }
  Tensor index = order_on_device(layout, ep_rank, with_local, all);
  if (layout.has_padding && kernels::device_traits(rows.device()).has_host_memory) {
    const Tensor is_used =
        at::cat({nonzero_rows(rows.narrow(0, 0, all - local)), at::ones({local}, at::kBool)})
            .index_select(0, index);
    index = index.masked_select(is_used);
    const auto of_experts = is_used.split_with_sizes(tokens_per_expert);
    std::ranges::transform(of_experts, tokens_per_expert.begin(),
                           [](const Tensor& used) { return used.sum().item<int64_t>(); });
  }
  return {kernels::make_permutation(index, all), std::move(tokens_per_expert)};
}

ExpertOrder order_in_segments(const DispatchLayout& layout, int64_t ep_rank, bool with_received) {
  const Tensor& own = layout.local_counts;  // [L]
  const int64_t experts = own.size(0);
  const int64_t processes = with_received ? std::ssize(layout.receive_counts) : int64_t{1};
  const int64_t own_column = with_received ? ep_rank : 0;
  // Size and first row of each block. A block is the rows of one process for one expert. The last
  // block of an expert is the gap up to a multiple of 8 (kSegmentRows).
  const Tensor blocks = at::zeros({processes + 1, experts}, own.options());
  const Tensor first = at::zeros_like(blocks);
  int64_t received = 0;
  for (int64_t process = 0; with_received && process < processes; ++process) {
    if (process != ep_rank) {
      const int64_t slots = layout.received_tokens_per_expert[process].front();  // of each expert
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
  // Rows of gaps are scattered to row `all`, which is cut off.
  const Tensor row_of_index = at::full({all + 1}, -1, own.options().dtype(at::kInt))
                                  .index_copy_(0, index.masked_fill(is_gap, all), row.to(at::kInt))
                                  .narrow(0, 0, all)
                                  .view({all, 1});
  const Tensor segments = whole.cumsum(0).to(at::kInt);
  return {{index.masked_fill(is_gap, -1), row_of_index, segments.narrow(0, experts - 1, 1), all, 1},
          segments};
}

}  // namespace moe::model
