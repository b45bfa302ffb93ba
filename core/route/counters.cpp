// Most counters follow from a histogram of the rows over (source rank, kind of row); the kinds are
// in kernels/ops/plan_gate_weights.h. Dropped requests are requests minus accepted rows.

#include "core/route/counters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "core/base/error.h"
#include "core/route/router.h"
#include "kernels/ops/plan_gate_weights.h"

namespace moe::route {

namespace {

using kernels::kAcceptedRow;
using kernels::kFilledRow;
using kernels::kRectifiedAloneRow;
using kernels::kRectifiedRow;
using kernels::kRemoteRow;
using kernels::kRowKinds;

constexpr CounterField kFields[] = {
    {"tokens", &CounterValues::tokens},
    {"requests", &CounterValues::requests},
    {"dropped_requests", &CounterValues::dropped_requests},
    {"dropped_tokens", &CounterValues::dropped_tokens},
    {"unserved_tokens", &CounterValues::unserved_tokens},
    {"fr_requests", &CounterValues::fr_requests},
    {"fr_filled", &CounterValues::fr_filled},
    {"fr_rejected", &CounterValues::fr_rejected},
    {"ir_tokens", &CounterValues::ir_tokens},
    {"slots_total", &CounterValues::slots_total},
    {"slots_used", &CounterValues::slots_used},
    {"padding", &CounterValues::padding},
    {"rows_sent", &CounterValues::rows_sent},
};
constexpr std::array kLists = {&CounterValues::tokens_per_expert, &CounterValues::rank_dropped,
                               &CounterValues::rank_ir, &CounterValues::requests_per_expert};

int64_t sum_counts(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Returns kAcceptedRow, kFilledRow or kRectifiedRow for each row, [n] i64. Unused rows, whose
// choice is 0, give kAcceptedRow.
at::Tensor row_kinds(const RouteInput& input, const Plan& plan) {
  return (plan.choice - (input.k - 1)).clamp_min_(kAcceptedRow);
}

// Returns the number of rows by source rank and kind, [(W + 1) * kRowKinds] i64. The last kRowKinds
// entries count unused rows.
at::Tensor count_rows_by_rank(const RouteInput& input, const Plan& plan, bool has_ir) {
  const int64_t num_cells = (input.ranks + 1) * kRowKinds;
  if (input.tokens() == 0) {
    return at::zeros({num_cells}, plan.token.options());
  }
  const at::Tensor source_rank = input.source_rank.index_select(0, plan.token);
  at::Tensor kind = row_kinds(input, plan);
  if (has_ir) {
    kind += at::logical_and(kind == kRectifiedRow, plan.count == input.k);
  }
  if (input.is_dropless && input.ranks > 1) {
    const int64_t local = input.experts() / input.ranks;
    kind += (plan.expert.floor_divide(local) != source_rank) * kRemoteRow;
  }
  const at::Tensor cell =
      (source_rank * kRowKinds + kind)
          .masked_fill_(plan.expert == input.experts(), input.ranks * kRowKinds);
  return count_values(cell, num_cells);
}

// Returns the sum over valid tokens of the entropy of g = softmax(a), f64 [], computed as H = sum_j
// g_j (a_max - a_j) - ln g_max, in which no term is negative.
at::Tensor entropy_sum(const RouteInput& input) {
  const at::Tensor best = input.experts_by_logit.narrow(1, 0, 1);
  const at::Tensor below = input.logits.gather(1, best) - input.logits;  // [T, E]
  at::Tensor entropy =
      (input.scores * below).sum(1) - input.scores.gather(1, best).squeeze(1).log();
  if (input.valid_tokens < input.tokens()) {
    entropy.masked_fill_(input.source_rank == input.ranks, 0);
  }
  return entropy.sum(at::kDouble);
}

CounterValues make_host_values(const RouteInput& input, const RouterSettings& settings) {
  const int64_t experts = input.experts(), slots = sum_counts(input.capacity);  // per expert
  CounterValues values;
  values.tokens = input.valid_tokens;
  values.tokens_per_expert.resize(experts);
  values.requests_per_expert.resize(settings.bias_rate ? experts : 0);
  values.rank_dropped.resize(input.ranks);
  values.rank_ir.resize(input.ranks);
  values.rows_sent = input.is_dropless ? 0 : (experts - experts / input.ranks) * slots;
  values.slots_total = experts * slots;
  if (settings.family->has_token_requests) {
    values.requests = input.valid_tokens * input.k;
    values.fr_requests = settings.fr && input.k < experts ? input.valid_tokens : 0;
    for (int64_t rank = 0; rank < input.ranks; ++rank) {  // add_rows() subtracts accepted requests
      values.rank_dropped[rank] = input.k * input.rank_tokens[rank];
    }
  }
  return values;
}

// Adds the histogram `cell` [W * kRowKinds] of count_rows_by_rank() to host values.
void add_rows(const int64_t* cell, bool has_token_requests, CounterValues& values) {
  for (size_t rank = 0; rank < values.rank_ir.size(); ++rank, cell += kRowKinds) {
    const int64_t accepted = cell[kAcceptedRow] + cell[kRemoteRow + kAcceptedRow];
    const int64_t filled = cell[kFilledRow] + cell[kRemoteRow + kFilledRow];
    values.rank_ir[rank] = cell[kRectifiedRow] + cell[kRectifiedAloneRow];
    values.ir_tokens += values.rank_ir[rank];
    values.dropped_tokens += cell[kRectifiedAloneRow];
    values.rows_sent += cell[kRemoteRow + kAcceptedRow] + cell[kRemoteRow + kFilledRow];
    values.slots_used += values.slots_total > 0 ? accepted + filled : 0;
    if (has_token_requests) {
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

// Reads one layer from `next` (`counted`, tokens_per_expert, requests_per_expert) into `values` and
// returns a pointer past it.
const int64_t* read_layer(const Counters& layer, const int64_t* next, CounterValues& values) {
  values = layer.host_values;
  add_rows(next, layer.has_token_requests, values);
  next += (std::ssize(values.rank_ir) + 1) * kRowKinds;
  values.unserved_tokens = values.tokens - *next++;
  values.dropped_tokens += values.unserved_tokens;
  values.entropy_sum = std::bit_cast<double>(*next++);
  for (auto* list : {&values.tokens_per_expert, &values.requests_per_expert}) {
    std::copy_n(next, list->size(), list->begin());
    next += list->size();
  }
  return next;
}

// Returns the number of tokens with each expert among their first k choices, [E] i64.
at::Tensor count_requests_by_expert(const RouteInput& input) {
  const at::Tensor is_padding = (input.source_rank == input.ranks).unsqueeze(1);
  const at::Tensor experts = input.experts_by_choice.narrow(1, 0, input.k)
                                 .masked_fill(is_padding, input.experts())
                                 .reshape(-1);
  return count_values(experts, input.experts() + 1).narrow(0, 0, input.experts());
}

void add_rank_counts(OrderedJson& json, const std::string& name,
                     const std::vector<int64_t>& counts) {
  json[name + "_per_rank"] = counts;
  json[name + "_rank_max"] = counts.empty() ? 0 : std::ranges::max(counts);
  json[name + "_rank_mean"] = ratio(sum_counts(counts), counts.size());
}

using Cells = std::vector<std::pair<std::string, std::string>>;  // (heading, text)

// Returns a line of routing_table(). `sum`: the counters of all layers, which decide which columns
// are shown.
Cells table_cells(const CounterValues& counters, double load, int64_t dead_experts,
                  const CounterValues& sum) {
  Cells cells;
  const auto add_percent = [&](bool is_shown, const char* heading, int64_t part, int64_t whole) {
    if (is_shown) {
      cells.emplace_back(heading, fmt::format("{:.2f}", 100 * ratio(part, whole)));
    }
  };
  add_percent(sum.slots_total > 0, "drop %", counters.dropped_requests, counters.requests);
  add_percent(sum.unserved_tokens > 0, "unserved %", counters.unserved_tokens, counters.tokens);
  add_percent(sum.fr_requests > 0, "fill %", counters.fr_filled, counters.fr_requests);
  add_percent(sum.ir_tokens > 0, "IR %", counters.ir_tokens, counters.tokens);
  add_percent(sum.slots_total > 0, "padding %", counters.padding, counters.slots_total);
  cells.emplace_back("experts/token", fmt::format("{:.3f}", counters.experts_per_token()));
  cells.emplace_back("load max/mean", fmt::format("{:.2f}", load));
  cells.emplace_back("dead", fmt::format("{}", dead_experts));
  if (sum.entropy_sum > 0) {
    cells.emplace_back("entropy",
                       fmt::format("{:.3f}", ratio(counters.entropy_sum, counters.tokens)));
  }
  return cells;
}

}  // namespace

std::span<const CounterField> counter_fields() { return kFields; }

Counters make_counters(const RouteInput& input, const Plan& plan, const RouterSettings& settings,
                       const at::Tensor& counted) {
  return {make_host_values(input, settings), settings.family->has_token_requests, plan.rows,
          counted, settings.bias_rate ? count_requests_by_expert(input) : at::Tensor()};
}

Counters count_plan(const RouteInput& input, const Plan& plan, const RouterSettings& settings) {
  const at::NoGradGuard no_grad;
  const at::Tensor served = (rows_per_token(input, plan) > 0).sum();
  const at::Tensor entropy = settings.family->has_softmax_scores
                                 ? entropy_sum(input).reshape(1)
                                 : at::zeros({1}, input.logits.options().dtype(at::kDouble));
  return make_counters(
      input, plan, settings,
      at::cat({count_rows_by_rank(input, plan, settings.ir), served.reshape(1),
               entropy.view(at::kLong)}));  // the bits of the f64, so that one transfer is enough
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
    next = read_layer(counters[i], next, result[i]);
  }
  MOE_CHECK(next == all.data_ptr<int64_t>() + all.numel(), "{} numbers", all.numel());
  return result;
}

at::Tensor count_rows_by_token(const RouteInput& input, const Plan& plan) {
  const at::NoGradGuard no_grad;
  const int64_t columns = 3 + input.experts();
  const at::Tensor is_unused = plan.expert == input.experts();
  const at::Tensor first = plan.token * columns;
  const auto cells = [&](const at::Tensor& column) {
    return (first + column).masked_fill_(is_unused, input.tokens() * columns);
  };
  const at::Tensor all = at::cat({cells(row_kinds(input, plan)), cells(plan.expert + 3)});
  return count_values(all, input.tokens() * columns + 1)
      .narrow(0, 0, input.tokens() * columns)
      .view({input.tokens(), columns});
}

void CounterValues::add(const CounterValues& other) {
  for (const auto& [name, member] : kFields) {
    this->*member += other.*member;
  }
  entropy_sum += other.entropy_sum;
  for (const auto list : kLists) {
    auto& sums = this->*list;
    const auto& terms = other.*list;
    sums.resize(std::max(sums.size(), terms.size()));
    std::transform(terms.begin(), terms.end(), sums.begin(), sums.begin(), std::plus<>());
  }
}

std::vector<double> pack_counters(const CounterValues& values) {
  std::vector<double> numbers;
  for (const auto& [name, member] : kFields) {
    numbers.push_back(values.*member);
  }
  numbers.push_back(values.entropy_sum);
  for (const auto list : kLists) {
    numbers.insert(numbers.end(), (values.*list).begin(), (values.*list).end());
  }
  return numbers;
}

CounterValues unpack_counters(const std::vector<double>& numbers, int64_t experts, int64_t ranks) {
  const int64_t num_fixed = std::ssize(kFields) + 1 + experts + 2 * ranks;
  const int64_t requests = std::ssize(numbers) - num_fixed;  // E with a bias, else 0
  MOE_CHECK(requests == 0 || requests == experts, "{} numbers of {} experts and {} ranks",
            numbers.size(), experts, ranks);
  CounterValues values;
  auto next = numbers.begin();
  for (const auto& [name, member] : kFields) {
    values.*member = *next++;
  }
  values.entropy_sum = *next++;
  const std::array sizes = {experts, ranks, ranks, requests};  // of kLists
  for (size_t i = 0; i < kLists.size(); ++i) {
    (values.*kLists[i]).assign(next, next + sizes[i]);
    next += sizes[i];
  }
  return values;
}

int64_t CounterValues::rows() const { return sum_counts(tokens_per_expert); }

double CounterValues::experts_per_token() const { return ratio(rows(), tokens); }

double CounterValues::load_max_over_mean() const {
  if (rows() == 0) {
    return 0;
  }
  const double mean = ratio(rows(), tokens_per_expert.size());
  return std::ranges::max(tokens_per_expert) / mean;
}

int64_t CounterValues::dead_experts() const { return std::ranges::count(tokens_per_expert, 0); }

double CounterValues::sparsity() const {
  return tokens == 0 ? 0 : 1 - experts_per_token() / tokens_per_expert.size();
}

CounterTotal sum_layers(const std::vector<CounterValues>& layers) {
  CounterTotal total;
  for (const auto& layer : layers) {
    total.sum.add(layer);
    total.tokens = std::max(total.tokens, layer.tokens);
    total.worst_load = std::max(total.worst_load, layer.load_max_over_mean());
    total.dead_experts += layer.dead_experts();
    total.sparsity += layer.sparsity() / layers.size();
  }
  return total;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

OrderedJson to_json(const CounterValues& counters, int64_t row_bytes) {
  OrderedJson json = to_json(sum_layers({counters}), row_bytes);
  json["load"] = counters.tokens_per_expert;
  if (!counters.requests_per_expert.empty()) {
    json["requests_per_expert"] = counters.requests_per_expert;
  }
  return json;
}

OrderedJson to_json(const CounterTotal& total, int64_t row_bytes) {
  const CounterValues& counters = total.sum;
  OrderedJson json;
  for (const auto& [name, member] : kFields) {
    if (member == &CounterValues::rows_sent) {
      json["rows"] = counters.rows();
    }
    json[name] = counters.*member;
  }
  if (row_bytes > 0) {
    json["bytes_sent"] = 2 * counters.rows_sent * row_bytes;
  }
  json["dropped_share"] = ratio(counters.dropped_requests, counters.requests);
  json["filled_share"] = ratio(counters.fr_filled, counters.fr_requests);
  json["ir_share"] = ratio(counters.ir_tokens, counters.tokens);
  json["unserved_share"] = ratio(counters.unserved_tokens, counters.tokens);
  json["padding_share"] = ratio(counters.padding, counters.slots_total);
  json["unsuccessful_share"] = ratio(counters.dropped_requests + counters.fr_rejected,
                                     counters.requests + counters.fr_requests);
  json["entropy"] = ratio(counters.entropy_sum, counters.tokens);
  json["experts_per_token"] = counters.experts_per_token();
  add_rank_counts(json, "dropped", counters.rank_dropped);
  add_rank_counts(json, "ir", counters.rank_ir);
  json["tokens"] = total.tokens;
  json["sparsity"] = total.sparsity;
  json["load_max_over_mean"] = total.worst_load;
  json["dead_experts"] = total.dead_experts;
  return json;
}

OrderedJson layers_json(const std::vector<int64_t>& numbers,
                        const std::vector<CounterValues>& layers, int64_t row_bytes) {
  MOE_CHECK(numbers.size() == layers.size(), "{} and {} layers", numbers.size(), layers.size());
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    OrderedJson layer = {{"layer", numbers[i]}};
    layer.update(to_json(layers[i], row_bytes));
    list.push_back(std::move(layer));
  }
  return list;
}

std::string routing_table(const std::vector<int64_t>& numbers,
                          const std::vector<CounterValues>& layers) {
  const CounterTotal total = sum_layers(layers);
  std::string head = "layer", lines;
  const auto add_line = [&](const std::string& name, const Cells& cells) {
    lines += fmt::format("\n{:<5}", name);
    for (const auto& [heading, text] : cells) {
      lines += fmt::format("  {:>{}}", text, std::max<size_t>(6, heading.size()));
    }
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    add_line(fmt::format("{}", numbers.at(i)),
             table_cells(layers[i], layers[i].load_max_over_mean(), layers[i].dead_experts(),
                         total.sum));
  }
  const Cells last = table_cells(total.sum, total.worst_load, total.dead_experts, total.sum);
  add_line("all", last);
  for (const auto& [heading, text] : last) {
    head += fmt::format("  {:>6}", heading);
  }
  return head + lines + "\n";
}

}  // namespace moe::route
