#include "core/route/routing_case.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "core/route/decisions.h"

namespace moe::route {
namespace {

// The double that an f32 is printed as: 0.1f gives 0.1, not 0.10000000149011612.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

at::Tensor gradient(const at::Tensor& loss, const at::Tensor& logits) {
  return torch::autograd::grad({loss}, {logits})[0];
}

struct Routed {
  at::Tensor logits;
  Routing routing;
};

Routed run(const RoutingCase& routing_case, const RouterSettings& router) {
  const at::Tensor logits = routing_case.logits.detach().clone().requires_grad_(true);
  return {logits, route(logits, router, routing_case.group, routing_case.bias)};
}

struct Answer {
  OrderedJson expect = OrderedJson::object(), loss = OrderedJson::object(),
              grad = OrderedJson::object();

  // A gradient of fresh logits, so that none meets another. sum(w * upstream) is added up in f64.
  void add(const RoutingCase& routing_case, const CaseGradient& asked) {
    const Routed routed = run(routing_case, asked.router);
    if (asked.which == nullptr && !routing_case.upstream.defined()) {
      return;
    }
    const at::Tensor value =
        asked.which != nullptr ? routed.routing.losses.*asked.which
                               : (routed.routing.combine * routing_case.upstream).sum(at::kDouble);
    loss[asked.loss] = number_json(value);
    grad[asked.gradient] = matrix_json(gradient(value, routed.logits));
  }
  OrderedJson json() const { return {{"expect", expect}, {"loss", loss}, {"grad", grad}}; }
};

OrderedJson answer_lambda(const Json& input, const std::string& where) {
  const double k = get_double(input, "k", where);
  const double experts = get_double(input, "num_experts", where);
  const double multiplier = get_double(input, "multiplier", where, 1.2);
  double lambda = get_double(input, "lambda0", where, 1e-8);
  if (!input.contains("sparsity") || !input["sparsity"].is_array() || !(experts > 0)) {
    throw UserError("{}: a lambda case needs num_experts above 0 and a list 'sparsity'", where);
  }
  const double target = 1.0 - k / experts;
  OrderedJson lambdas = {lambda};
  for (const auto& sparsity : input["sparsity"]) {
    if (!sparsity.is_number()) {
      throw UserError("{}: 'sparsity' holds something that is no number", where);
    }
    lambda = next_lambda(lambda, sparsity.get<double>(), target, multiplier);
    lambdas.push_back(lambda);
  }
  return {{"expect", {{"lambdas", lambdas}, {"target", target}}}};
}

OrderedJson answer_capacity(const Json& input, const std::string& where) {
  if (!input.contains("rows") || !input["rows"].is_array()) {
    throw UserError("{}: a capacity case needs 'rows' of [capacity factor, tokens, experts]",
                    where);
  }
  OrderedJson slots = OrderedJson::array();
  for (const auto& row : input["rows"]) {
    const bool good = row.is_array() && row.size() == 3 &&
                      (row[0].is_null() || (row[0].is_number() && row[0].get<double>() > 0)) &&
                      row[1].is_number_integer() && row[2].is_number_integer() &&
                      row[1].get<int64_t>() >= 0 && row[2].get<int64_t>() > 0;
    if (!good) {
      throw UserError("{}: row {} is not [capacity factor or null, tokens, experts]", where,
                      slots.size() + 1);
    }
    const auto factor = row[0].is_null() ? std::nullopt : std::optional(row[0].get<double>());
    slots.push_back(capacity_slots(factor, row[1].get<int64_t>(), row[2].get<int64_t>()));
  }
  return {{"expect", {{"slots", slots}}}};
}

OrderedJson slot_stats(const CounterValues& counted) {
  return {{"requests", counted.requests},
          {"dropped_requests", counted.dropped_requests},
          {"dropped_tokens", counted.dropped_tokens},
          {"unserved_tokens", counted.unserved_tokens},
          {"fr_rejected", counted.fr_rejected},
          {"slots_total", counted.slots_total},
          {"slots_used", counted.slots_used},
          {"padding", counted.padding},
          {"ir_tokens", counted.ir_tokens}};
}

}  // namespace

bool is_routing_case(const std::string& kind) {
  const auto& families = router_families();
  return std::any_of(families.begin(), families.end(),
                     [&](const auto& family) { return family.name == kind; });
}

bool is_rule_case(const std::string& kind) { return kind == "lambda" || kind == "capacity"; }

std::string case_kinds() {
  std::string kinds;
  for (const auto& family : router_families()) {
    kinds += family.name + ", ";
  }
  return kinds + "layer, lambda, capacity";
}

OrderedJson answer(const RoutingCase& routing_case) {
  Answer out;
  const RouterFamily& family = *routing_case.router.family;
  const Routed routed = run(routing_case, routing_case.router);
  const RouteInput& input = routed.routing.input;
  if (family.has_softmax_scores) {
    out.expect["probs"] = matrix_json(input.scores);
  }
  if (family.has_slots) {
    out.expect["capacity"] = input.capacity;
  }
  put_decisions(routed.routing, routing_case.router, out.expect);
  if (family.has_slots) {
    out.expect["accepted"] = decisions_of(input, routed.routing.plan).accepted;
  }
  out.expect["combine"] = matrix_json(routed.routing.combine);
  if (family.tokens_request) {
    const int64_t choices =
        routing_case.router.fr ? std::min(input.k + 1, input.experts()) : input.k;
    out.expect["choices"] = matrix_json(input.ranked.narrow(1, 0, choices));
  }
  for (const auto& gradient :
       functions_of(routing_case.router).case_gradients(routing_case.router)) {
    out.add(routing_case, gradient);
  }
  return out.json();
}

OrderedJson answer_rule_case(const std::string& kind, const Json& input, const std::string& where) {
  return kind == "lambda" ? answer_lambda(input, where) : answer_capacity(input, where);
}

OrderedJson matrix_json(const at::Tensor& matrix) {
  const at::Tensor host = matrix.detach().cpu().contiguous();
  const bool integers = host.scalar_type() == at::kLong;
  OrderedJson rows = OrderedJson::array();
  for (int64_t row = 0; row < host.size(0); ++row) {
    OrderedJson line = OrderedJson::array();
    for (int64_t column = 0; column < host.size(1); ++column) {
      const int64_t at = row * host.size(1) + column;
      if (integers) {
        line.push_back(host.data_ptr<int64_t>()[at]);
      } else {
        line.push_back(shortest(host.data_ptr<float>()[at]));
      }
    }
    rows.push_back(std::move(line));
  }
  return rows;
}

OrderedJson number_json(const at::Tensor& scalar) {
  return shortest(static_cast<float>(scalar.item<double>()));
}

void put_decisions(const Routing& routing, const RouterSettings& router, OrderedJson& expect) {
  const CounterValues counted = read_counters({routing.counters})[0];
  Decisions decisions = decisions_of(routing.input, routing.plan);
  const RouterFamily& family = *router.family;
  if (family.has_slots) {
    expect["slots"] = decisions.slots;
    expect["drops"] = decisions.drops;
    expect["fr_filled"] = decisions.fr_filled;
    expect["ir"] = decisions.ir;
    expect["stats"] = slot_stats(counted);
    return;
  }
  if (!family.ranks_choices) {
    for (auto& experts : decisions.accepted) {
      std::sort(experts.begin(), experts.end());
    }
  }
  expect["selected"] = decisions.accepted;
  expect["stats"] = {{"experts_per_token", counted.experts_per_token()}};
  if (family.has_adaptive_l1) {
    expect["stats"]["sparsity"] = counted.sparsity();
  }
}

}  // namespace moe::route
