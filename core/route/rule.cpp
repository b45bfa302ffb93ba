// What rules read, made once per group: homes, capacities, and every token's experts best first.

#include "core/route/rule.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/error.h"
#include "core/route/router.h"
#include "kernels/ops/router.h"

namespace moe::route {

RoutingGroup spread_over_ranks(int64_t tokens, int64_t ranks) {
  RoutingGroup group;
  group.ranks = ranks;
  group.home.resize(tokens);
  for (int64_t token = 0; token < tokens; ++token) {
    group.home[token] = token * ranks / tokens;
  }
  return group;
}

int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens,
                       int64_t experts) {
  if (rank_tokens == 0 || !capacity_factor) {
    return rank_tokens;
  }
  // 1e-6 guards products like 2.2 * 100 / 4, which is 55.000000000000001 in binary.
  const double slots = std::ceil(
      *capacity_factor * static_cast<double>(rank_tokens) / static_cast<double>(experts) - 1e-6);
  return std::max<int64_t>(1, static_cast<int64_t>(slots));
}

namespace {

// Where runs of one number begin.
std::vector<int64_t> begins_of_runs(const std::vector<int64_t>& numbers) {
  std::vector<int64_t> begins;
  for (size_t token = 0; token < numbers.size(); ++token) {
    if (token == 0 || numbers[token] != numbers[token - 1]) {
      begins.push_back(static_cast<int64_t>(token));
    }
  }
  return begins;
}

// n, if numbers[t] = numbers[0] + floor(t n / T) for all of the T, as the homes of one process are
// (spread_over_ranks) and the numbers of sequences of one length. The last number leaves two n to
// choose from, and a run follows from its two ends.
std::optional<int64_t> evenly_spread_over(const std::vector<int64_t>& numbers,
                                          const std::vector<int64_t>& begins) {
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t last = count < 2 ? -1 : numbers.back() - numbers.front();
  if (last < 0) {
    return std::nullopt;
  }
  const int64_t least = (last * count + count - 2) / (count - 1);
  for (const int64_t n : {least, least + 1}) {
    bool is_even = true;
    for (size_t run = 0; is_even && run < begins.size(); ++run) {
      const int64_t first = begins[run], end = run + 1 < begins.size() ? begins[run + 1] : count;
      const int64_t number = numbers[static_cast<size_t>(first)] - numbers.front();
      is_even = first * n / count == number && (end - 1) * n / count == number;
    }
    if (is_even) {
      return n;
    }
  }
  return std::nullopt;
}

// [T] i64 of numbers that stand in runs, as homes and sequences do: on a GPU they are made there,
// by a fill a run or, of numbers that are spread evenly, by arithmetic, because a copy from the
// host would wait, and no graph could be recorded (kernels/ops/graph.h). Only of many uneven runs
// is there a copy.
at::Tensor runs_on(at::Device device, const std::vector<int64_t>& numbers) {
  constexpr size_t kMostFills = 64, kLaunchesOfArithmetic = 4;
  const auto options = at::TensorOptions(at::kLong).device(device);
  if (device.is_cpu()) {
    return at::tensor(numbers, at::kLong);
  }
  const auto count = static_cast<int64_t>(numbers.size());
  const std::vector<int64_t> begins = begins_of_runs(numbers);
  if (begins.size() > kLaunchesOfArithmetic) {
    if (const auto n = evenly_spread_over(numbers, begins)) {
      return at::arange(count, options).mul_(*n).floor_divide_(count).add_(numbers.front());
    }
  }
  if (begins.size() > kMostFills) {
    return at::tensor(numbers, at::kLong).to(device);
  }
  const at::Tensor filled = at::empty({count}, options);
  for (size_t run = 0; run < begins.size(); ++run) {
    const int64_t first = begins[run], end = run + 1 < begins.size() ? begins[run + 1] : count;
    filled.narrow(0, first, end - first).fill_(numbers[static_cast<size_t>(first)]);
  }
  return filled;
}

// [T] i64 of `group.home`, W for -1.
at::Tensor homes_on(at::Device device, const RoutingGroup& group) {
  std::vector<int64_t> homes = group.home;
  std::replace(homes.begin(), homes.end(), int64_t{-1}, group.ranks);
  return runs_on(device, homes);
}

// What losses read besides.
void add_sequences(at::Device device, const RoutingGroup& group, RouteInput& input) {
  if (!group.sequence) {
    return;
  }
  const std::vector<int64_t>& sequence = *group.sequence;
  MOE_CHECK(sequence.size() == group.home.size(), "{} tokens of sequences, {} tokens",
            sequence.size(), group.home.size());
  for (const int64_t number : sequence) {
    MOE_CHECK(number >= 0, "sequence {}", number);
    input.sequences = std::max(input.sequences, number + 1);
  }
  input.sequence = runs_on(device, sequence);
}

// [T, E] i64: `by_logit` in the order of g + bias. In f64, where no two logits have one g but those
// that are all but 0, and stable, so that a bias of zeros changes no order.
at::Tensor by_biased_score(const at::Tensor& logits, const at::Tensor& by_logit,
                           const at::Tensor& bias) {
  const at::Tensor biased = at::softmax(logits.to(at::kDouble), 1) + bias.to(at::kDouble);
  const at::Tensor order = std::get<1>(at::sort(biased.gather(1, by_logit), /*stable=*/true,
                                                /*dim=*/1, /*descending=*/true));
  return by_logit.gather(1, order);
}

// [T, E] i64: larger logits first, ties go to the lower expert.
at::Tensor order_of_logits(const at::Tensor& logits) {
  if (!logits.is_cpu() || logits.scalar_type() != at::kFloat) {
    return std::get<1>(at::sort(logits, /*stable=*/true, /*dim=*/1, /*descending=*/true));
  }
  const at::Tensor plain = logits.contiguous();
  const at::Tensor order = at::empty(plain.sizes(), plain.options().dtype(at::kLong));
  kernels::expert_order_cpu(
      {plain.const_data_ptr<float>(), order.data_ptr<int64_t>(), plain.size(0), plain.size(1)});
  return order;
}

}  // namespace

RouteInput make_input(const at::Tensor& logits, const at::Tensor& scores,
                      const RouterSettings& settings, const RoutingGroup& group,
                      const at::Tensor& bias) {
  const int64_t tokens = logits.size(0);
  const int64_t experts = logits.size(1);
  MOE_CHECK(static_cast<int64_t>(group.home.size()) == tokens, "{} homes for {} tokens",
            group.home.size(), tokens);
  MOE_CHECK(group.ranks > 0 && experts % group.ranks == 0,
            "{} ranks, {} experts: every rank holds as many experts", group.ranks, experts);
  RouteInput input;
  input.logits = logits.detach();
  input.scores = scores.detach();
  input.by_logit = order_of_logits(input.logits);
  input.ranked = settings.bias_rate && bias.defined()
                     ? by_biased_score(input.logits, input.by_logit, bias.detach())
                     : input.by_logit;
  input.ranks = group.ranks;
  const RouterFamily& family = *settings.family;
  input.k = family.most_choices(settings, experts);
  MOE_CHECK(input.k >= 1 && input.k <= experts, "k = {} of {} experts", input.k, experts);
  input.dropless = !has_capacity(settings);

  std::vector<int64_t> rank_tokens(group.ranks, 0);
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t home = group.home[token];
    MOE_CHECK(home >= -1 && home < group.ranks, "token {} at home on rank {} of {}", token, home,
              group.ranks);
    if (home >= 0) {
      ++rank_tokens[home];
      ++input.valid_tokens;
    }
  }
  input.home = homes_on(logits.device(), group);
  input.wants_z_loss = group.wants_z_loss;
  add_sequences(logits.device(), group, input);
  input.rank_tokens = rank_tokens;
  for (const int64_t count : rank_tokens) {
    input.capacity.push_back(
        family.has_slots ? capacity_slots(settings.capacity_factor, count, experts) : 0);
  }
  return input;
}

}  // namespace moe::route
