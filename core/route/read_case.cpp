// A routing case as it is read, and written again.

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/route/routing_case.h"

namespace moe::route {
namespace {

constexpr size_t kMaxNumbers = size_t{1} << 26;  // of one matrix

// The keys of a case's input that describe its router, by the names of config.json.
RouterSettings read_router(const std::string& kind, const Json& input, const std::string& where) {
  Json router = {{"family", kind}};
  for (const auto& family : router_families()) {
    for (const auto& option : family.options) {
      if (input.contains(option.key)) {
        router[option.key] = input[option.key];
      }
    }
  }
  return router_from_json(router, where);
}

// [E] f32: what is added where tokens choose.
at::Tensor read_bias(const Json& input, const RouterSettings& router, int64_t experts,
                     const std::string& where) {
  if (!input.contains("bias")) {
    return {};
  }
  if (!router.bias_rate) {
    throw UserError("{}: 'bias' is of routers with a bias_rate, which this one has not", where);
  }
  const Json rows = {{"bias", Json::array({input["bias"]})}};
  const at::Tensor bias = read_matrix(rows, "bias", where);
  if (bias.size(1) != experts) {
    throw UserError("{}: 'bias' has {} numbers, the logits have {} experts", where, bias.size(1),
                    experts);
  }
  return bias.squeeze(0);
}

void check_size(const Json& input, const char* key, int64_t actual, const std::string& where) {
  const int64_t said = get_int(input, key, where, actual);
  if (said != actual) {
    throw UserError("{}: {} is {}, but the logits have {}", where, key, said, actual);
  }
}

}  // namespace

at::Tensor read_matrix(const Json& input, const std::string& key, const std::string& where) {
  if (!input.contains(key) || !input[key].is_array() || input[key].empty() ||
      !input[key][0].is_array() || input[key][0].empty()) {
    throw UserError("{}: '{}' is not a list of rows of numbers", where, key);
  }
  const Json& rows = input[key];
  const size_t width = rows[0].size();
  if (rows.size() > kMaxNumbers / width) {
    throw UserError("{}: '{}' has more than {} numbers", where, key, kMaxNumbers);
  }
  std::vector<float> numbers;
  numbers.reserve(rows.size() * width);
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].is_array() || rows[row].size() != width) {
      throw UserError("{}: row {} of '{}' does not have {} numbers as the first has", where, row,
                      key, width);
    }
    for (const auto& number : rows[row]) {
      const double value = number.is_number() ? number.get<double>() : NAN;
      numbers.push_back(static_cast<float>(value));
      if (!std::isfinite(numbers.back())) {
        throw UserError("{}: row {} of '{}' holds {}, which is no finite 32-bit number", where, row,
                        key, number.dump());
      }
    }
  }
  return at::tensor(numbers, at::kFloat)
      .view({static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)});
}

RoutingGroup read_group(const Json& input, int64_t tokens, int64_t experts,
                        const std::string& where) {
  const int64_t ranks = get_int(input, "num_ranks", where, 1);
  if (ranks < 1 || experts % ranks != 0) {
    throw UserError("{}: {} ranks do not divide {} experts; use a divisor", where, ranks, experts);
  }
  std::vector<bool> valid(tokens, true);
  if (input.contains("valid") && !input["valid"].is_null()) {
    const Json& list = input["valid"];
    if (!list.is_array() || static_cast<int64_t>(list.size()) != tokens) {
      throw UserError("{}: 'valid' is not a list of {} truth values", where, tokens);
    }
    for (int64_t token = 0; token < tokens; ++token) {
      const Json& flag = list[token];
      valid[token] = flag.is_boolean() ? flag.get<bool>() : flag != 0;
    }
  }
  RoutingGroup group = spread_over_ranks(std::count(valid.begin(), valid.end(), true), ranks);
  if (input.contains("home") && !input["home"].is_null()) {
    group.home = get_ints(input, "home", where);
    if (static_cast<int64_t>(group.home.size()) != tokens) {
      throw UserError("{}: 'home' names {} ranks for {} tokens", where, group.home.size(), tokens);
    }
    for (const int64_t home : group.home) {
      if (home < 0 || home >= ranks) {
        throw UserError("{}: 'home' names rank {}; there are 0 to {}", where, home, ranks - 1);
      }
    }
  } else {
    for (int64_t token = 0; token < tokens; ++token) {
      if (!valid[token]) {
        group.home.insert(group.home.begin() + token, -1);
      }
    }
  }
  for (int64_t token = 0; token < tokens; ++token) {
    group.home[token] = valid[token] ? group.home[token] : -1;
  }
  return group;
}

RoutingCase read_routing_case(const std::string& kind, const Json& input,
                              const std::string& where) {
  RoutingCase routing_case;
  routing_case.router = read_router(kind, input, where);
  routing_case.logits = read_matrix(input, "logits", where);
  check_size(input, "num_tokens", routing_case.logits.size(0), where);
  check_size(input, "num_experts", routing_case.logits.size(1), where);
  check_router(routing_case.router, routing_case.logits.size(1));
  routing_case.group =
      read_group(input, routing_case.logits.size(0), routing_case.logits.size(1), where);
  routing_case.bias = read_bias(input, routing_case.router, routing_case.logits.size(1), where);
  if (input.contains("upstream")) {
    routing_case.upstream = read_matrix(input, "upstream", where);
    if (routing_case.upstream.sizes() != routing_case.logits.sizes()) {
      throw UserError("{}: 'upstream' has another shape than the logits", where);
    }
  }
  return routing_case;
}

OrderedJson input_json(const RoutingCase& routing_case) {
  OrderedJson input = {{"num_tokens", routing_case.logits.size(0)},
                       {"num_experts", routing_case.logits.size(1)},
                       {"num_ranks", routing_case.group.ranks}};
  std::vector<bool> valid;
  std::vector<int64_t> home;
  for (const int64_t rank : routing_case.group.home) {
    valid.push_back(rank >= 0);
    home.push_back(std::max<int64_t>(rank, 0));
  }
  input["home"] = home;
  input["valid"] = valid;
  input["logits"] = matrix_json(routing_case.logits);
  const OrderedJson router = to_json(routing_case.router);
  for (const auto& [key, value] : router.items()) {
    if (!value.is_null() || key == "capacity_factor") {
      input[key] = value;
    }
  }
  if (routing_case.bias.defined()) {
    input["bias"] = matrix_json(routing_case.bias.unsqueeze(0))[0];
  }
  if (routing_case.upstream.defined()) {
    input["upstream"] = matrix_json(routing_case.upstream);
  }
  return {{"kind", routing_case.router.family->name}, {"input", input}};
}

}  // namespace moe::route
