// Every row of a plan is of one kind; one histogram of (home rank, kind) then answers all questions
// but three: tokens_per_expert (the plan has it), tokens without a row, entropy. What capacity
// refused needs no counting: a request that was not accepted was dropped.

#include "core/route/counters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "core/base/error.h"
#include "core/route/router.h"
#include "core/route/rows.h"
#include "kernels/ops/plan_weights.h"

namespace moe::route {
namespace {

using kernels::kAcceptedRow;
using kernels::kAwayRow;
using kernels::kFilledRow;
using kernels::kRectifiedAloneRow;
using kernels::kRectifiedRow;
using kernels::kRowKinds;

// [n] i64: kAcceptedRow, kFilledRow or kRectifiedRow; unused rows have choice 0.
at::Tensor kinds_of(const RouteInput& input, const Plan& plan) {
  return (plan.choice - (input.k - 1)).clamp_min_(kAcceptedRow);
}

// [(W + 1) * kRowKinds] i64: rows by home rank and kind; the last kRowKinds cells are no rank's.
at::Tensor rows_by_rank(const RouteInput& input, const Plan& plan, bool has_ir) {
  const int64_t cells = (input.ranks + 1) * kRowKinds;
  if (input.tokens() == 0) {
    return at::zeros({cells}, plan.token.options());
  }
  const at::Tensor home = input.home.index_select(0, plan.token);
  at::Tensor kind = kinds_of(input, plan);
  if (has_ir) {
    kind += at::logical_and(kind == kRectifiedRow, plan.count == input.k);
  }
  if (input.dropless && input.ranks > 1) {
    const int64_t local = input.experts() / input.ranks;
    kind += (plan.expert.floor_divide(local) != home) * kAwayRow;
  }
  const at::Tensor cell =
      (home * kRowKinds + kind)
          .masked_fill_(plan.expert == input.experts(), input.ranks * kRowKinds);
  return at::zeros({cells}, cell.options()).scatter_add_(0, cell, at::ones_like(cell));
}

// Sum over valid tokens of the entropy of g = softmax(a), f64 []. The scores are g already; H =
// sum_j g_j (a_max - a_j) - ln g_max, where no term is negative and g_max >= 1 / E.
at::Tensor entropy_sum(const RouteInput& input) {
  const at::Tensor best = input.by_logit.narrow(1, 0, 1);
  const at::Tensor below = input.logits.gather(1, best) - input.logits;  // [T, E]
  at::Tensor entropy =
      (input.scores * below).sum(1) - input.scores.gather(1, best).squeeze(1).log();
  if (input.valid_tokens < input.tokens()) {
    entropy.masked_fill_(input.home == input.ranks, 0);
  }
  return entropy.sum(at::kDouble);
}

// Rows that leave their rank whatever the plan is: buffers of a size that capacity fixes.
int64_t buffer_rows(const RouteInput& input) {
  const int64_t others = input.experts() - input.experts() / input.ranks;
  return input.dropless
             ? 0
             : others * std::accumulate(input.capacity.begin(), input.capacity.end(), int64_t{0});
}

CounterValues known_values(const RouteInput& input, const RouterSettings& settings) {
  CounterValues host_values;
  host_values.tokens = input.valid_tokens;
  host_values.tokens_per_expert.resize(input.experts());
  host_values.requests_per_expert.resize(settings.bias_rate ? input.experts() : 0);
  host_values.rank_dropped.resize(input.ranks);
  host_values.rank_ir.resize(input.ranks);
  host_values.rows_sent = buffer_rows(input);
  if (settings.family->has_slots) {
    host_values.slots_total =
        input.experts() * std::accumulate(input.capacity.begin(), input.capacity.end(), int64_t{0});
  }
  if (settings.family->tokens_request) {
    host_values.requests = input.valid_tokens * input.k;
    host_values.fr_requests = settings.fr && input.k < input.experts() ? input.valid_tokens : 0;
    for (int64_t rank = 0; rank < input.ranks; ++rank) {  // less what was accepted, when read
      host_values.rank_dropped[rank] = input.k * input.rank_tokens[rank];
    }
  }
  return host_values;
}

// The histogram's share in `values`; `cell` [W * kRowKinds].
void add_rows(const int64_t* cell, const Counters& layer, CounterValues& values) {
  for (size_t rank = 0; rank < values.rank_ir.size(); ++rank, cell += kRowKinds) {
    const int64_t accepted = cell[kAcceptedRow] + cell[kAwayRow + kAcceptedRow];
    const int64_t filled = cell[kFilledRow] + cell[kAwayRow + kFilledRow];
    values.rank_ir[rank] = cell[kRectifiedRow] + cell[kRectifiedAloneRow];
    values.ir_tokens += values.rank_ir[rank];
    values.dropped_tokens += cell[kRectifiedAloneRow];
    values.rows_sent += cell[kAwayRow + kAcceptedRow] + cell[kAwayRow + kFilledRow];
    values.slots_used += layer.has_slots ? accepted + filled : 0;
    if (layer.tokens_request) {
      values.rank_dropped[rank] -= accepted;
      values.dropped_requests += values.rank_dropped[rank];
      values.fr_filled += filled;
    } else {
      values.requests += accepted;
    }
  }
  values.fr_rejected = values.fr_requests - values.fr_filled;
  values.padding = values.slots_total - values.slots_used;
}

// `next`: counted, then tokens_per_expert; returns what follows.
const int64_t* read_one(const Counters& layer, const int64_t* next, CounterValues& values) {
  values = layer.host_values;
  add_rows(next, layer, values);
  next += (static_cast<int64_t>(values.rank_ir.size()) + 1) * kRowKinds;
  values.unserved_tokens = values.tokens - *next++;
  values.dropped_tokens += values.unserved_tokens;
  values.entropy_sum = std::bit_cast<double>(*next++);
  for (auto* list : {&values.tokens_per_expert, &values.requests_per_expert}) {
    std::copy_n(next, list->size(), list->begin());
    next += list->size();
  }
  return next;
}

// [E] i64: tokens with the expert among their first k choices.
at::Tensor requests_by_expert(const RouteInput& input) {
  const at::Tensor is_padding = (input.home == input.ranks).unsqueeze(1);
  const at::Tensor wanted =
      input.ranked.narrow(1, 0, input.k).masked_fill(is_padding, input.experts()).reshape(-1);
  return at::zeros({input.experts() + 1}, wanted.options())
      .scatter_add_(0, wanted, at::ones_like(wanted))
      .narrow(0, 0, input.experts());
}

constexpr std::array kCounts = {&CounterValues::tokens,           &CounterValues::requests,
                                &CounterValues::dropped_requests, &CounterValues::dropped_tokens,
                                &CounterValues::unserved_tokens,  &CounterValues::fr_requests,
                                &CounterValues::fr_filled,        &CounterValues::fr_rejected,
                                &CounterValues::ir_tokens,        &CounterValues::slots_total,
                                &CounterValues::slots_used,       &CounterValues::padding,
                                &CounterValues::rows_sent};
constexpr std::array kLists = {&CounterValues::tokens_per_expert, &CounterValues::rank_dropped,
                               &CounterValues::rank_ir, &CounterValues::requests_per_expert};

void add_to(std::vector<int64_t>& sums, const std::vector<int64_t>& terms) {
  sums.resize(std::max(sums.size(), terms.size()));
  for (size_t i = 0; i < terms.size(); ++i) {
    sums[i] += terms[i];
  }
}

}  // namespace

Counters counters_of(const RouteInput& input, const Plan& plan, const RouterSettings& settings,
                     const at::Tensor& counted) {
  return {known_values(input, settings),
          settings.family->tokens_request,
          settings.family->has_slots,
          plan.rows,
          counted,
          settings.bias_rate ? requests_by_expert(input) : at::Tensor()};
}

Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings) {
  const at::NoGradGuard no_grad;
  const at::Tensor served = (rows_per_token(input, rows_of(plan)) > 0).sum();
  const at::Tensor entropy = settings.family->has_softmax_scores
                                 ? entropy_sum(input).reshape(1)
                                 : at::zeros({1}, input.logits.options().dtype(at::kDouble));
  return counters_of(input, plan, settings,
                     at::cat({rows_by_rank(input, plan, settings.ir), served.reshape(1),
                              entropy.view(at::kLong)}));  // its bits, to travel with the rest
}

std::vector<CounterValues> read_counters(const std::vector<Counters>& counters) {
  if (counters.empty()) {
    return {};
  }
  std::vector<at::Tensor> parts;
  for (const auto& layer : counters) {
    parts.push_back(layer.counted);
    parts.push_back(layer.tokens_per_expert);
    if (layer.requests_per_expert.defined()) {
      parts.push_back(layer.requests_per_expert);
    }
  }
  const at::Tensor all = at::cat(parts).cpu();
  const int64_t* next = all.data_ptr<int64_t>();
  std::vector<CounterValues> result(counters.size());
  for (size_t i = 0; i < counters.size(); ++i) {
    next = read_one(counters[i], next, result[i]);
  }
  MOE_CHECK(next == all.data_ptr<int64_t>() + all.numel(), "{} numbers", all.numel());
  return result;
}

at::Tensor rows_of_tokens(const RouteInput& input, const Plan& plan) {
  const at::NoGradGuard no_grad;
  const int64_t columns = 3 + input.experts();
  const at::Tensor is_empty = plan.expert == input.experts();
  const at::Tensor first = plan.token * columns;
  const auto cells = [&](const at::Tensor& column) {
    return (first + column).masked_fill_(is_empty, input.tokens() * columns);
  };
  const at::Tensor cell = at::cat({cells(kinds_of(input, plan)), cells(plan.expert + 3)});
  return at::zeros({input.tokens() * columns + 1}, cell.options())
      .scatter_add_(0, cell, at::ones_like(cell))
      .narrow(0, 0, input.tokens() * columns)
      .view({input.tokens(), columns});
}

void CounterValues::add(const CounterValues& other) {
  for (const auto field : kCounts) {
    this->*field += other.*field;
  }
  entropy_sum += other.entropy_sum;
  for (const auto list : kLists) {
    add_to(this->*list, other.*list);
  }
}

std::vector<double> numbers_of(const CounterValues& values) {
  std::vector<double> numbers;
  for (const auto field : kCounts) {
    numbers.push_back(static_cast<double>(values.*field));
  }
  numbers.push_back(values.entropy_sum);
  for (const auto list : kLists) {
    numbers.insert(numbers.end(), (values.*list).begin(), (values.*list).end());
  }
  return numbers;
}

CounterValues counters_from(const std::vector<double>& numbers, int64_t experts, int64_t ranks) {
  const auto least = static_cast<int64_t>(kCounts.size()) + 1 + experts + 2 * ranks;
  const int64_t requests = static_cast<int64_t>(numbers.size()) - least;  // E with a bias, else 0
  MOE_CHECK(requests == 0 || requests == experts, "{} numbers of {} experts and {} ranks",
            numbers.size(), experts, ranks);
  CounterValues values;
  auto next = numbers.begin();
  for (const auto field : kCounts) {
    values.*field = static_cast<int64_t>(*next++);
  }
  values.entropy_sum = *next++;
  for (const auto& [list, size] :
       {std::pair(&CounterValues::tokens_per_expert, experts),
        std::pair(&CounterValues::rank_dropped, ranks), std::pair(&CounterValues::rank_ir, ranks),
        std::pair(&CounterValues::requests_per_expert, requests)}) {
    (values.*list).assign(next, next + size);
    next += size;
  }
  return values;
}

int64_t CounterValues::rows() const {
  return std::accumulate(tokens_per_expert.begin(), tokens_per_expert.end(), int64_t{0});
}

double CounterValues::experts_per_token() const {
  return tokens == 0 ? 0 : static_cast<double>(rows()) / static_cast<double>(tokens);
}

double CounterValues::load_max_over_mean() const {
  if (rows() == 0) {
    return 0;
  }
  const double mean = static_cast<double>(rows()) / static_cast<double>(tokens_per_expert.size());
  return static_cast<double>(
             *std::max_element(tokens_per_expert.begin(), tokens_per_expert.end())) /
         mean;
}

int64_t CounterValues::dead_experts() const {
  return std::count(tokens_per_expert.begin(), tokens_per_expert.end(), 0);
}

double CounterValues::sparsity() const {
  return tokens == 0 ? 0 : 1 - experts_per_token() / static_cast<double>(tokens_per_expert.size());
}

RankSpread spread_of(const std::vector<int64_t>& counts) {
  if (counts.empty()) {
    return {};
  }
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return {*std::max_element(counts.begin(), counts.end()),
          static_cast<double>(sum) / static_cast<double>(counts.size())};
}

CounterTotal total_of(const std::vector<CounterValues>& layers) {
  CounterTotal total;
  for (const auto& layer : layers) {
    total.sum.add(layer);
    total.tokens = std::max(total.tokens, layer.tokens);
    total.worst_load = std::max(total.worst_load, layer.load_max_over_mean());
    total.dead_experts += layer.dead_experts();
    total.sparsity += layer.sparsity() / static_cast<double>(layers.size());
  }
  return total;
}

}  // namespace moe::route
