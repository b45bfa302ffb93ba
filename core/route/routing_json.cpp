#include "core/route/routing_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>

#include "core/base/error.h"

namespace moe::route {

namespace {

constexpr size_t kMaxLogits = size_t{1} << 26;

// Returns input["logits"], [T, E] f32.
at::Tensor read_logits(const Json& input, const std::string& where) {
  const Json& rows = input["logits"];
  USER_ERROR_IF(!rows.is_array() || rows.empty() || !rows[0].is_array() || rows[0].empty(),
                "{}: 'logits' is not a list of rows of numbers", where);
  const size_t width = rows[0].size();
  USER_ERROR_IF(rows.size() > kMaxLogits / width, "{}: 'logits' has more than {} numbers", where,
                kMaxLogits);
  std::vector<float> numbers;
  numbers.reserve(rows.size() * width);
  for (size_t row = 0; row < rows.size(); ++row) {
    USER_ERROR_IF(!rows[row].is_array() || rows[row].size() != width,
                  "{}: row {} of 'logits' does not have {} numbers as the first has", where, row,
                  width);
    for (const auto& number : rows[row]) {
      const double value = number.is_number() ? number.get<double>() : NAN;
      numbers.push_back(static_cast<float>(value));
      USER_ERROR_IF(!std::isfinite(numbers.back()),
                    "{}: row {} of 'logits' has {}, which is not a finite 32-bit number", where,
                    row, number.dump());
    }
  }
  return at::tensor(numbers, at::kFloat).view({std::ssize(rows), -1});
}

RoutingGroup read_group(const Json& input, int64_t tokens, int64_t experts,
                        const std::string& where) {
  const int64_t ranks = get_int(input, "num_ranks", where, 1);
  USER_ERROR_IF(ranks < 1 || experts % ranks != 0,
                "{}: {} ranks do not divide {} experts; use a divisor", where, ranks, experts);
  std::vector<bool> valid(tokens, true);
  if (has_value(input, "valid")) {
    const Json& list = input["valid"];
    USER_ERROR_IF(!list.is_array() || std::ssize(list) != tokens,
                  "{}: 'valid' is not a list of {} truth values", where, tokens);
    for (int64_t token = 0; token < tokens; ++token) {
      const Json& flag = list[token];
      valid[token] = flag.is_boolean() ? flag.get<bool>() : flag != 0;
    }
  }
  const bool has_ranks = has_value(input, "home");
  std::vector<int64_t> source_rank =  // of all tokens, else of the valid ones
      has_ranks ? get_ints(input, "home", where)
                : partition_tokens(std::ranges::count(valid, true), ranks).source_rank;
  USER_ERROR_IF(has_ranks && std::ssize(source_rank) != tokens,
                "{}: 'home' names {} ranks for {} tokens", where, source_rank.size(), tokens);
  for (const int64_t rank : source_rank) {
    USER_ERROR_IF(rank < 0 || rank >= ranks, "{}: 'home' names rank {}; there are 0 to {}", where,
                  rank, ranks - 1);
  }
  RoutingGroup group{.source_rank = std::vector<int64_t>(tokens, -1), .ranks = ranks};
  for (int64_t token = 0, next = 0; token < tokens; ++token) {
    if (valid[token]) {
      group.source_rank[token] = source_rank[has_ranks ? token : next++];
    }
  }
  return group;
}

// Returns the double with the shortest digits that identify `value`: 0.1 for 0.1f, not
// 0.10000000149011612.
double shortest_double(float value) { return std::stod(fmt::format("{}", value)); }

OrderedJson matrix_json(const at::Tensor& matrix) {
  const at::Tensor host = matrix.detach().cpu().contiguous();
  const bool is_integer = host.scalar_type() == at::kLong;
  OrderedJson rows = OrderedJson::array();
  for (int64_t i = 0; i < host.numel(); ++i) {
    if (i % host.size(1) == 0) {
      rows.push_back(OrderedJson::array());
    }
    rows.back().push_back(is_integer ? OrderedJson(host.data_ptr<int64_t>()[i])
                                     : OrderedJson(shortest_double(host.data_ptr<float>()[i])));
  }
  return rows;
}

OrderedJson input_json(const RoutingProblem& problem) {
  OrderedJson input = {{"num_tokens", problem.logits.size(0)},
                       {"num_experts", problem.logits.size(1)},
                       {"num_ranks", problem.group.ranks}};
  for (const int64_t rank : problem.group.source_rank) {
    input["home"].push_back(std::max<int64_t>(rank, 0));
    input["valid"].push_back(rank >= 0);
  }
  input["logits"] = matrix_json(problem.logits);
  const OrderedJson router = to_json(problem.router);
  for (const auto& [key, value] : router.items()) {
    if (!value.is_null() || key == "capacity_factor") {
      input[key] = value;
    }
  }
  return input;
}

// Adds the decisions and counters to `expect`.
void add_decisions(const Routing& routing, const RouterFamily& family, OrderedJson& expect) {
  const OrderedJson counters = to_json(read_counters({routing.counters})[0], /*row_bytes=*/0);
  const auto add_stats = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      expect["stats"][name] = counters.at(name);
    }
  };
  Decisions decisions = list_decisions(routing.input, routing.plan);
  if (family.has_slots) {
    expect["slots"] = decisions.slots;
    expect["drops"] = decisions.drops;
    expect["fr_filled"] = decisions.fr_filled;
    expect["ir"] = decisions.ir;
    add_stats({"requests", "dropped_requests", "dropped_tokens", "unserved_tokens", "fr_rejected",
               "slots_total", "slots_used", "padding", "ir_tokens"});
    expect["accepted"] = decisions.accepted;
    return;
  }
  if (!family.has_ranked_choices) {
    for (auto& experts : decisions.accepted) {
      std::sort(experts.begin(), experts.end());
    }
  }
  expect["selected"] = decisions.accepted;
  add_stats({"experts_per_token"});
  if (family.has_adaptive_l1) {
    add_stats({"sparsity"});
  }
}

OrderedJson losses_json(const AuxLosses& losses) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, loss] : {std::pair{"load_balance", &losses.load_balance},
                                   {"entropy", &losses.entropy},
                                   {"l1", &losses.l1}}) {
    if (loss->defined()) {
      json[name] = shortest_double(loss->item<float>());
    }
  }
  return json;
}

}  // namespace

RoutingProblem read_problem(const Json& input, const RouterSettings& router,
                            const std::string& where) {
  RoutingProblem problem{read_logits(input, where), {}, router};
  check_router(router, problem.logits.size(1));
  problem.group = read_group(input, problem.logits.size(0), problem.logits.size(1), where);
  return problem;
}

OrderedJson route_to_json(const RoutingProblem& problem) {
  const RouterFamily& family = *problem.router.family;
  const Routing routing = route(problem.logits, problem.router, problem.group);
  const RouteInput& input = routing.input;
  OrderedJson expect = OrderedJson::object();
  if (family.has_softmax_scores) {
    expect["probs"] = matrix_json(input.scores);
  }
  if (family.has_slots) {
    expect["capacity"] = input.capacity;
  }
  add_decisions(routing, family, expect);
  expect["combine"] = matrix_json(routing.combine);
  if (family.has_token_requests) {
    const int64_t choices = problem.router.fr ? std::min(input.k + 1, input.experts()) : input.k;
    expect["choices"] = matrix_json(input.experts_by_choice.narrow(1, 0, choices));
  }
  return {{"kind", family.name},
          {"input", input_json(problem)},
          {"expect", expect},
          {"loss", losses_json(routing.losses)}};
}

Decisions list_decisions(const RouteInput& input, const Plan& plan) {
  const int64_t experts = input.experts(), k = input.k;
  const auto source_rank = to_host(input.source_rank);
  Decisions result;
  result.slots.assign(input.ranks, std::vector<Decisions::List>(experts));
  result.accepted.resize(input.tokens());

  const auto token = to_host(plan.token), expert = to_host(plan.expert);
  const auto choice = to_host(plan.choice), count = to_host(plan.count);
  std::vector<Decisions::List> by_choice;  // [token, choice, expert]
  for (size_t row = 0; row < token.size() && expert[row] < experts; ++row) {
    if (choice[row] > k) {
      result.ir.push_back({token[row], expert[row], count[row]});
      continue;
    }
    if (choice[row] == k) {
      result.fr_filled.push_back({token[row], expert[row]});
    }
    result.slots[source_rank[token[row]]][expert[row]].push_back(token[row]);
    by_choice.push_back({token[row], choice[row], expert[row]});
  }
  std::sort(by_choice.begin(), by_choice.end());
  for (const auto& row : by_choice) {
    result.accepted[row[0]].push_back(row[2]);
  }

  const auto refused_token = to_host(plan.overflow_token);
  const auto refused_expert = to_host(plan.overflow_expert);
  const auto refused_choice = to_host(plan.overflow_choice);
  for (size_t row = 0; row < refused_token.size() && refused_expert[row] < experts; ++row) {
    result.drops.push_back({refused_token[row], refused_choice[row] + 1, refused_expert[row]});
  }
  for (auto* list : {&result.drops, &result.fr_filled, &result.ir}) {
    std::sort(list->begin(), list->end());
  }
  return result;
}

}  // namespace moe::route
