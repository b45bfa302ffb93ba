#include "core/route/plan.h"

#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "kernels/ops/device.h"
#include "kernels/ops/operations.h"

namespace moe::route {

namespace {

// Returns the number of rows in each group, [E * W + 1] i64.
at::Tensor group_sizes(const RouteInput& input, const at::Tensor& groups) {
  return count_values(groups, input.experts() * input.ranks + 1);
}

// Returns `experts_by_logit` [T, E] stably sorted by descending g + bias. The sum is in f64, so
// that a bias of zeros keeps the order unless g is almost 0.
at::Tensor sort_by_biased_score(const at::Tensor& logits, const at::Tensor& experts_by_logit,
                                const at::Tensor& bias) {
  const at::Tensor biased = at::softmax(logits.to(at::kDouble), 1) + bias.to(at::kDouble);
  const at::Tensor order = at::argsort(biased.gather(1, experts_by_logit), /*stable=*/true,
                                       /*dim=*/1, /*descending=*/true);
  return experts_by_logit.gather(1, order);
}

}  // namespace

RoutingGroup partition_tokens(int64_t tokens, int64_t ranks) {
  RoutingGroup group;
  group.ranks = ranks;
  group.source_rank.resize(tokens);
  for (int64_t token = 0; token < tokens; ++token) {
    group.source_rank[token] = token * ranks / tokens;
  }
  return group;
}

int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens,
                       int64_t experts) {
  if (rank_tokens == 0 || !capacity_factor) {
    return rank_tokens;
  }
  // 1e-6 guards against rounding: 2.2 * 100 / 4 is 55.00000000000001 in f64.
  return std::max<int64_t>(1, std::ceil(*capacity_factor * rank_tokens / experts - 1e-6));
}

RouteInput make_input(const at::Tensor& logits, const at::Tensor& scores,
                      const RouterSettings& settings, const RoutingGroup& group,
                      const at::Tensor& bias) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  MOE_CHECK(std::ssize(group.source_rank) == tokens, "{} source ranks for {} tokens",
            group.source_rank.size(), tokens);
  MOE_CHECK(group.ranks > 0 && experts % group.ranks == 0, "{} ranks do not divide {} experts",
            group.ranks, experts);
  RouteInput input;
  input.logits = logits.detach();
  input.scores = scores.detach();
  input.experts_by_logit =
      kernels::call<"moe::expert_order", decltype(kernels::expert_order_by_operations)>(
          input.logits);
  input.experts_by_choice =
      settings.bias_rate && bias.defined()
          ? sort_by_biased_score(input.logits, input.experts_by_logit, bias.detach())
          : input.experts_by_logit;
  input.ranks = group.ranks;
  input.k = max_choices(settings, experts);
  MOE_CHECK(input.k >= 1 && input.k <= experts, "k = {} of {} experts", input.k, experts);
  input.is_dropless = !has_capacity(settings);
  input.rank_tokens.resize(group.ranks);
  std::vector<int64_t> source_rank = group.source_rank;
  for (int64_t& rank : source_rank) {
    MOE_CHECK(rank >= -1 && rank < group.ranks, "source rank {} of {}", rank, group.ranks);
    if (rank < 0) {
      rank = group.ranks;
    } else {
      ++input.rank_tokens[rank];
      ++input.valid_tokens;
    }
  }
  input.source_rank = to_device(source_rank, logits.device());
  input.compute_z_loss = group.compute_z_loss;
  input.sum_losses = group.sum_losses;
  if (group.sequence) {
    MOE_CHECK(std::ssize(*group.sequence) == tokens, "sequences of {} tokens, not {}",
              group.sequence->size(), tokens);
    for (const int64_t number : *group.sequence) {
      MOE_CHECK(number >= 0, "sequence {}", number);
      input.sequences = std::max(input.sequences, number + 1);
    }
    input.sequence = to_device(*group.sequence, logits.device());
  }
  for (const int64_t count : input.rank_tokens) {
    input.capacity.push_back(
        settings.family->has_slots ? capacity_slots(settings.capacity_factor, count, experts) : 0);
  }
  return input;
}

// ------------------------------------------------------------------------------------------- rules

Plan apply_capacity(const RouteInput& input, const Plan& plan) {
  if (input.is_dropless) {
    return plan;
  }
  const at::Tensor fits = fit_slots(input, plan, group_capacity(input));
  const Rows dropped = sort_by_group(input, keep_only(plan, fits.logical_not(), input.experts()));
  Plan result = plan;
  result.overflow_token = dropped.token;
  result.overflow_expert = dropped.expert;
  result.overflow_choice = dropped.choice;
  const Rows accepted = sort_by_group(input, keep_only(plan, fits, input.experts()));
  return with_rows(input, accepted, max_accepted_rows(input, plan.token.size(0)), result);
}

Plan fill_in(const RouteInput& input, const Plan& plan) {
  if (input.k >= input.experts()) {
    return plan;  // there is no (k+1)-th expert
  }
  const at::Tensor next = input.experts_by_choice.narrow(1, input.k, 1);
  const Rows requests = request_rows(input, next, at::ones_like(next, at::kBool), input.k);
  Rows fill_ins = sort_by_group(input, sort_by_score(input, requests));
  if (!input.is_dropless) {
    const at::Tensor free = group_capacity(input) - group_sizes(input, row_groups(input, plan));
    fill_ins = keep_only(fill_ins, fit_slots(input, fill_ins, free), input.experts());
  }
  const Rows all = sort_by_group(input, concatenate(plan, fill_ins));
  return with_rows(input, all, max_accepted_rows(input, all.token.size(0)), plan);
}

Plan intra_gpu(const RouteInput& input, const Plan& plan) {
  const int64_t tokens = input.tokens(), local = input.experts() / input.ranks;
  const at::Tensor missing = (input.k - rows_per_token(input, plan)).clamp_min(0);  // [T]

  // Logits of the experts of the token's own rank, [T, E / W]. Padding uses rank 0; request_rows()
  // ignores it.
  const at::Tensor source_rank =
      input.source_rank.masked_fill(input.source_rank == input.ranks, 0).view({tokens, 1, 1});
  const at::Tensor local_logits = input.logits.reshape({tokens, input.ranks, local})
                                      .gather(1, source_rank.expand({tokens, 1, local}))
                                      .squeeze(1);
  const at::Tensor best =
      local_logits.argmax(1, /*keepdim=*/true) + source_rank.squeeze(1) * local;  // [T, 1]

  Rows rectified = request_rows(input, best, (missing > 0).unsqueeze(1), input.k + 1);
  rectified.count = rectified.count * missing;
  const Rows all = sort_by_group(input, concatenate(plan, rectified));
  return with_rows(input, all, all.token.size(0), plan);
}

// --------------------------------------------------------------------------------- rows and groups

at::Tensor count_values(const at::Tensor& values, int64_t size) {
  return at::zeros({size}, values.options()).scatter_add_(0, values, at::ones_like(values));
}

std::vector<int64_t> to_host(const at::Tensor& numbers) {
  const at::Tensor host = numbers.cpu().contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device) {
  const auto options = at::TensorOptions(at::kLong);
  const int64_t count = std::ssize(numbers);
  if (std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end()) {
    return at::full({count}, count == 0 ? 0 : numbers.front(), options.device(device));
  }
  const bool has_host_memory = kernels::device_traits(device).has_host_memory;
  const at::Tensor host = at::empty({count}, options.pinned_memory(!has_host_memory));
  std::copy(numbers.begin(), numbers.end(), host.data_ptr<int64_t>());
  return host.to(device, /*non_blocking=*/true);
}

Rows request_rows(const RouteInput& input, const at::Tensor& expert, const at::Tensor& keep,
                  int64_t first_choice) {
  const int64_t columns = expert.size(1);
  const at::Tensor position = at::arange(input.tokens() * columns, input.source_rank.options());
  const at::Tensor is_used =
      at::logical_and(keep, (input.source_rank < input.ranks).unsqueeze(1)).reshape(-1);
  const Rows all = {position.floor_divide(columns), expert.reshape(-1),
                    position.remainder(columns) + first_choice, at::ones_like(position)};
  return keep_only(all, is_used, input.experts());
}

Rows take(const Rows& rows, const at::Tensor& index) {
  return {rows.token.index_select(0, index), rows.expert.index_select(0, index),
          rows.choice.index_select(0, index), rows.count.index_select(0, index)};
}

Rows keep_only(const Rows& rows, const at::Tensor& keep, int64_t experts) {
  const at::Tensor drop = keep.logical_not();
  return {rows.token.masked_fill(drop, 0), rows.expert.masked_fill(drop, experts),
          rows.choice.masked_fill(drop, 0), rows.count.masked_fill(drop, 0)};
}

Rows concatenate(const Rows& first, const Rows& second) {
  return {at::cat({first.token, second.token}), at::cat({first.expert, second.expert}),
          at::cat({first.choice, second.choice}), at::cat({first.count, second.count})};
}

at::Tensor row_groups(const RouteInput& input, const Rows& rows) {
  if (rows.token.size(0) == 0) {
    return rows.token;  // source_rank is empty if there are no tokens
  }
  const at::Tensor group =
      rows.expert * input.ranks + input.source_rank.index_select(0, rows.token);
  return group.masked_fill(rows.expert == input.experts(), input.experts() * input.ranks);
}

at::Tensor slot_indices(const RouteInput& input, const at::Tensor& sorted_groups) {
  const at::Tensor sizes = group_sizes(input, sorted_groups);
  const at::Tensor starts = (sizes.cumsum(0) - sizes).index_select(0, sorted_groups);
  return at::arange(sorted_groups.size(0), sorted_groups.options()) - starts;
}

at::Tensor fit_slots(const RouteInput& input, const Rows& rows, const at::Tensor& slots) {
  const at::Tensor groups = row_groups(input, rows);
  return slot_indices(input, groups) < slots.index_select(0, groups);
}

at::Tensor group_capacity(const RouteInput& input) {
  std::vector<int64_t> slots;
  slots.reserve(input.experts() * input.ranks + 1);
  for (int64_t expert = 0; expert < input.experts(); ++expert) {
    slots.insert(slots.end(), input.capacity.begin(), input.capacity.end());
  }
  slots.push_back(0);
  return to_device(slots, input.logits.device());
}

Rows sort_by_group(const RouteInput& input, const Rows& rows) {
  return take(rows, at::argsort(row_groups(input, rows), /*stable=*/true));
}

Rows sort_by_score(const RouteInput& input, const Rows& rows) {
  const at::Tensor last = rows.expert.clamp_max(input.experts() - 1);
  const at::Tensor score =
      input.scores.reshape(-1).index_select(0, rows.token * input.experts() + last);
  return take(rows, at::argsort(score, /*stable=*/true, /*dim=*/0, /*descending=*/true));
}

Plan with_rows(const RouteInput& input, const Rows& rows, int64_t rows_max, const Plan& before) {
  const auto head = [n = std::min(rows_max, rows.token.size(0))](const at::Tensor& member) {
    return member.narrow(0, 0, n);
  };
  Plan plan = before;
  static_cast<Rows&>(plan) = {head(rows.token), head(rows.expert), head(rows.choice),
                              head(rows.count)};
  plan.rows = count_values(plan.expert, input.experts() + 1).narrow(0, 0, input.experts());
  if (!plan.overflow_token.defined()) {
    plan.overflow_token = plan.overflow_expert = plan.overflow_choice =
        at::empty({0}, rows.token.options());
  }
  return plan;
}

at::Tensor rows_per_token(const RouteInput& input, const Rows& rows) {
  const at::Tensor used = (rows.expert < input.experts()).to(at::kLong);
  return at::zeros({input.tokens()}, used.options()).scatter_add_(0, rows.token, used);
}

int64_t max_accepted_rows(const RouteInput& input, int64_t requests) {
  const int64_t slots =
      input.experts() * std::accumulate(input.capacity.begin(), input.capacity.end(), int64_t{0});
  return input.is_dropless ? requests : std::min(requests, slots);
}

}  // namespace moe::route
