#include "core/route/rows.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace moe::route {
namespace {

at::Tensor index_range(int64_t size, const at::Tensor& like) {
  return at::arange(size, like.options().dtype(at::kLong));
}

at::Tensor stable_order(const at::Tensor& key, bool descending) {
  return std::get<1>(at::sort(key, /*stable=*/true, /*dim=*/0, descending));
}

}  // namespace

std::vector<int64_t> to_host(const at::Tensor& numbers) {
  const at::Tensor host = numbers.cpu().contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

Rows rows_of(const Plan& plan) { return {plan.token, plan.expert, plan.choice, plan.count}; }

Rows requests(const RouteInput& input, const at::Tensor& expert, const at::Tensor& keep,
              int64_t first_choice) {
  const int64_t columns = expert.size(1);
  const at::Tensor position = index_range(input.tokens() * columns, input.logits);
  const at::Tensor real =
      at::logical_and(keep, (input.home < input.ranks).unsqueeze(1)).reshape(-1);
  const Rows all = {position.floor_divide(std::max<int64_t>(columns, 1)), expert.reshape(-1),
                    position.remainder(std::max<int64_t>(columns, 1)) + first_choice,
                    at::ones_like(position)};
  return keep_only(all, real, input.experts());
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

at::Tensor groups_of(const RouteInput& input, const Rows& rows) {
  if (rows.token.size(0) == 0) {
    return rows.token;  // a rank without a token has no home to look up
  }
  const at::Tensor group = rows.expert * input.ranks + input.home.index_select(0, rows.token);
  return group.masked_fill(rows.expert == input.experts(), input.experts() * input.ranks);
}

at::Tensor group_sizes(const RouteInput& input, const at::Tensor& groups) {
  return at::zeros({input.experts() * input.ranks + 1}, groups.options())
      .scatter_add_(0, groups, at::ones_like(groups));
}

at::Tensor slots_of(const RouteInput& input, const at::Tensor& sorted_groups) {
  const at::Tensor sizes = group_sizes(input, sorted_groups);
  const at::Tensor starts = sizes.cumsum(0) - sizes;
  return index_range(sorted_groups.size(0), sorted_groups) - starts.index_select(0, sorted_groups);
}

at::Tensor group_capacity(const RouteInput& input) {
  std::vector<int64_t> slots;
  slots.reserve(input.experts() * input.ranks + 1);
  for (int64_t expert = 0; expert < input.experts(); ++expert) {
    slots.insert(slots.end(), input.capacity.begin(), input.capacity.end());
  }
  slots.push_back(0);
  return at::tensor(slots, at::kLong).to(input.logits.device());
}

Rows sort_by_group(const RouteInput& input, const Rows& rows) {
  return take(rows, stable_order(groups_of(input, rows), /*descending=*/false));
}

Rows sort_by_score(const RouteInput& input, const Rows& rows) {
  const at::Tensor last = rows.expert.clamp_max(input.experts() - 1);
  const at::Tensor score =
      input.scores.reshape(-1).index_select(0, rows.token * input.experts() + last);
  return take(rows, stable_order(score, /*descending=*/true));
}

Plan with_rows(const RouteInput& input, const Rows& rows, int64_t rows_max, const Plan& before) {
  const int64_t rows_kept = std::min(rows_max, rows.token.size(0));
  Plan plan = before;
  plan.token = rows.token.narrow(0, 0, rows_kept);
  plan.expert = rows.expert.narrow(0, 0, rows_kept);
  plan.choice = rows.choice.narrow(0, 0, rows_kept);
  plan.count = rows.count.narrow(0, 0, rows_kept);
  plan.rows = at::zeros({input.experts() + 1}, rows.expert.options())
                  .scatter_add_(0, plan.expert, at::ones_like(plan.expert))
                  .narrow(0, 0, input.experts());
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

int64_t accepted_max(const RouteInput& input, int64_t requests) {
  const int64_t slots =
      input.experts() * std::accumulate(input.capacity.begin(), input.capacity.end(), int64_t{0});
  return std::min(requests, slots);
}

}  // namespace moe::route
