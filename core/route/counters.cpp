#include "core/route/counters.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/base/error.h"
#include "core/route/rows.h"

namespace moe::route {
namespace {

torch::Tensor number(double value, const torch::Tensor& like) {
  return torch::full({}, value, like.options().dtype(torch::kDouble));
}

torch::Tensor how_many(const torch::Tensor& mask) { return mask.sum().to(torch::kDouble); }

// Sum over valid tokens of the entropy of softmax(a); f64 [].
torch::Tensor entropy_sum(const RouteInput& input, const torch::Tensor& valid) {
  const torch::Tensor log_probabilities = torch::log_softmax(input.logits, 1);
  const torch::Tensor entropy = -(log_probabilities.exp() * log_probabilities).sum(1);
  return entropy.masked_fill(valid.logical_not(), 0).sum(torch::kDouble);
}

// The i-th integer of the values, in the order of the transfer.
std::array<int64_t*, kCounterScalars - 1> integers(CounterValues& values) {
  return {&values.tokens,
          &values.requests,
          &values.dropped_requests,
          &values.dropped_tokens,
          &values.unserved_tokens,
          &values.fr_requests,
          &values.fr_filled,
          &values.fr_rejected,
          &values.ir_tokens,
          &values.slots_total,
          &values.slots_used,
          &values.padding};
}

}  // namespace

Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings) {
  const torch::NoGradGuard no_grad;
  const bool has_slots = settings.family == Family::kTopK;
  const int64_t experts = input.experts();
  const int64_t slots =
      experts * std::accumulate(input.capacity.begin(), input.capacity.end(), int64_t{0});
  const int64_t fr_asking = settings.fr && input.k < experts ? input.valid_tokens : 0;

  const Rows rows = rows_of(plan);
  const torch::Tensor used = rows.expert < experts;
  const torch::Tensor by_ir = torch::logical_and(used, rows.choice > input.k);
  const torch::Tensor accepted = torch::logical_and(used, by_ir.logical_not());
  const torch::Tensor by_fr = torch::logical_and(accepted, rows.choice == input.k);
  const torch::Tensor valid = input.home < input.ranks;
  const auto without_row = [&](const Rows& some) {
    return how_many(torch::logical_and(valid, rows_per_token(input, some) == 0));
  };

  const torch::Tensor zero = number(0, input.logits);
  const torch::Tensor accepted_rows = how_many(accepted);
  const torch::Tensor filled = how_many(by_fr);
  const torch::Tensor requested =
      has_slots ? number(static_cast<double>(input.valid_tokens * input.k), input.logits)
                : accepted_rows;
  const torch::Tensor total = number(static_cast<double>(slots), input.logits);
  const torch::Tensor slots_used = has_slots ? accepted_rows : zero;
  const torch::Tensor asked = number(static_cast<double>(fr_asking), input.logits);
  return {torch::stack({number(static_cast<double>(input.valid_tokens), input.logits),
                        requested,
                        how_many(plan.overflow_expert < experts),
                        without_row(keep_only(rows, accepted, experts)),
                        without_row(rows),
                        asked,
                        filled,
                        asked - filled,
                        how_many(by_ir),
                        total,
                        slots_used,
                        total - slots_used,
                        settings.family == Family::kRelu ? zero : entropy_sum(input, valid)}),
          plan.rows};
}

std::vector<CounterValues> read_counters(const std::vector<Counters>& counters) {
  if (counters.empty()) {
    return {};
  }
  std::vector<torch::Tensor> parts;
  for (const auto& layer : counters) {
    parts.push_back(layer.scalars);
    parts.push_back(layer.load.to(torch::kDouble));  // exact below 2^53
  }
  const torch::Tensor all = torch::cat(parts).cpu();
  const double* next = all.data_ptr<double>();
  std::vector<CounterValues> result;
  for (const auto& layer : counters) {
    MOE_CHECK(layer.scalars.size(0) == kCounterScalars, "{} scalars", layer.scalars.size(0));
    CounterValues values;
    for (int64_t* field : integers(values)) {
      *field = static_cast<int64_t>(*next++);
    }
    values.entropy_sum = *next++;
    for (int64_t expert = 0; expert < layer.load.size(0); ++expert) {
      values.load.push_back(static_cast<int64_t>(*next++));
    }
    result.push_back(std::move(values));
  }
  return result;
}

void CounterValues::add(const CounterValues& other) {
  CounterValues terms = other;
  const auto mine = integers(*this);
  const auto theirs = integers(terms);
  for (size_t i = 0; i < mine.size(); ++i) {
    *mine[i] += *theirs[i];
  }
  entropy_sum += other.entropy_sum;
  load.resize(std::max(load.size(), other.load.size()));
  for (size_t expert = 0; expert < other.load.size(); ++expert) {
    load[expert] += other.load[expert];
  }
}

int64_t CounterValues::rows() const {
  return std::accumulate(load.begin(), load.end(), int64_t{0});
}

double CounterValues::experts_per_token() const {
  return tokens == 0 ? 0 : static_cast<double>(rows()) / static_cast<double>(tokens);
}

double CounterValues::load_max_over_mean() const {
  if (rows() == 0) {
    return 0;
  }
  const double mean = static_cast<double>(rows()) / static_cast<double>(load.size());
  return static_cast<double>(*std::max_element(load.begin(), load.end())) / mean;
}

int64_t CounterValues::dead_experts() const { return std::count(load.begin(), load.end(), 0); }

double CounterValues::sparsity() const {
  return tokens == 0 ? 0 : 1 - experts_per_token() / static_cast<double>(load.size());
}

}  // namespace moe::route
