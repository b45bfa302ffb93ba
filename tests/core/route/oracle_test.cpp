// Golden cases of kinds topk, topp, relu, lambda and capacity. Decisions must be equal; numbers
// agree to 1e-5 relative. An f32 softmax of logits up to 130 has a larger relative error, about eps
// |a| = 1.2e-7 * 130 = 1.6e-5, only where g is below 1e-38.

#include "tests/support/oracle.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/core/route/random_routing.h"
#include "tests/support/gradcheck.h"

namespace moe::test {
namespace {

using nlohmann::json;
using route::RouterSettings;

constexpr double kTolerance = 1e-5;

at::Tensor logits_of(const json& input) {
  return tensor_of(input.at("logits"), at::kFloat).requires_grad_(true);
}

void check_number(const at::Tensor& got, double want) {
  CHECK(got.item<double>() == Approx(want).epsilon(kTolerance).margin(kTolerance));
}

// Checks the gradient of `loss` with respect to the logits.
void check_gradient(const at::Tensor& loss, const at::Tensor& logits, const json& want) {
  const auto got = torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true)[0];
  CHECK(distance(got, tensor_of(want, at::kDouble)) < kTolerance);
}

void check_combine(const json& one, const RouterSettings& settings, const std::string& gradient) {
  const at::Tensor logits = logits_of(one.at("input"));
  const auto routing = route::route(logits, settings, group_of(one.at("input")));
  CHECK(distance(routing.combine, tensor_of(one["expect"]["combine"], at::kDouble)) < kTolerance);
  const at::Tensor upstream = tensor_of(one["input"]["upstream"], at::kFloat);
  const at::Tensor loss = (routing.combine * upstream).sum();
  check_number(loss, one["loss"]["combine"]);
  check_gradient(loss, logits, one["grad"][gradient]);

  // The row weights give the same loss and gradient.
  const auto& plan = routing.plan;
  const at::Tensor at_rows = upstream.reshape(-1).index_select(
      0, plan.token * upstream.size(1) + plan.expert.clamp_max(upstream.size(1) - 1));
  const at::Tensor by_rows = (routing.weights * at_rows).sum();
  check_number(by_rows, one["loss"]["combine"]);
  check_gradient(by_rows, logits, one["grad"][gradient]);
}

json slots_of(const std::vector<ReferenceRow>& rows, int64_t ranks, int64_t experts, int64_t k) {
  json slots = json::array();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    slots.push_back(std::vector<std::vector<int64_t>>(experts));
  }
  for (const auto& row : rows) {
    if (row.choice <= k) {
      slots[row.source_rank][row.expert].push_back(row.token);
    }
  }
  return slots;
}

// Returns the sorted lists that `words` returns for the rows, without empty ones.
template <typename Words>
json sorted_list(const std::vector<ReferenceRow>& rows, Words words) {
  std::vector<std::vector<int64_t>> list;
  for (const auto& row : rows) {
    const auto one = words(row);
    if (!one.empty()) {
      list.push_back(one);
    }
  }
  std::sort(list.begin(), list.end());
  return list;
}

void check_decisions(const json& one, const RouterSettings& settings) {
  const json& input = one.at("input");
  const json& expect = one.at("expect");
  const auto group = group_of(input);
  const auto routing = route::route(logits_of(input), settings, group);
  const int64_t experts = input.at("num_experts"), k = settings.k;
  const auto rows = used_rows(routing.plan, group, experts);
  using List = std::vector<int64_t>;

  const int64_t choices = expect.at("choices").at(0).size();
  CHECK(at::equal(routing.input.experts_by_choice.narrow(1, 0, choices),
                  tensor_of(expect.at("choices"), at::kLong)));
  CHECK(routing.input.capacity == expect.at("capacity").get<List>());
  CHECK(slots_of(rows, group.ranks, experts, k) == expect.at("slots"));
  CHECK(sorted_list(refused_rows(routing.plan, group, experts), [](const auto& row) {
          return List{row.token, row.choice + 1, row.expert};
        }) == expect.at("drops"));
  CHECK(sorted_list(rows, [k](const auto& row) {
          return row.choice == k ? List{row.token, row.expert} : List{};
        }) == expect.at("fr_filled"));
  CHECK(sorted_list(rows, [k](const auto& row) {
          return row.choice > k ? List{row.token, row.expert, row.count} : List{};
        }) == expect.at("ir"));
  std::vector<List> accepted(input.at("num_tokens").get<size_t>());
  for (int64_t choice = 0; choice <= k; ++choice) {
    for (const auto& row : rows) {
      if (row.choice == choice) {
        accepted[row.token].push_back(row.expert);
      }
    }
  }
  CHECK(json(accepted) == expect.at("accepted"));
  CHECK(distance(routing.input.scores, tensor_of(expect.at("probs"), at::kDouble)) < kTolerance);
}

void check_stats(const json& one, const RouterSettings& settings) {
  const auto routing =
      route::route(logits_of(one.at("input")), settings, group_of(one.at("input")));
  const auto values = route::read_counters({routing.counters})[0];
  const json& stats = one.at("expect").at("stats");
  const std::vector<std::pair<std::string, int64_t>> counts = {
      {"requests", values.requests},
      {"dropped_requests", values.dropped_requests},
      {"dropped_tokens", values.dropped_tokens},
      {"unserved_tokens", values.unserved_tokens},
      {"fr_rejected", values.fr_rejected},
      {"slots_total", values.slots_total},
      {"slots_used", values.slots_used},
      {"padding", values.padding},
      {"ir_tokens", values.ir_tokens}};
  for (const auto& [name, value] : counts) {
    INFO(name);
    CHECK((!stats.contains(name) || stats.at(name) == value));
  }
  if (stats.contains("experts_per_token")) {
    CHECK(values.experts_per_token() == Approx(stats["experts_per_token"].get<double>()));
  }
  if (stats.contains("sparsity")) {
    CHECK(values.sparsity() == Approx(stats["sparsity"].get<double>()));
  }
}

void check_loss(const json& one, const RouterSettings& settings, at::Tensor route::AuxLosses::*loss,
                const std::string& name) {
  INFO(name);
  const at::Tensor logits = logits_of(one.at("input"));
  const auto losses = route::route(logits, settings, group_of(one.at("input"))).losses;
  REQUIRE((losses.*loss).defined());
  check_number(losses.*loss, one["loss"][name]);
  check_gradient(losses.*loss, logits, one["grad"][name]);
}

// Checks the experts of each token, best first or by index.
void check_selected(const json& one, const RouterSettings& settings) {
  const auto group = group_of(one.at("input"));
  const auto routing = route::route(logits_of(one.at("input")), settings, group);
  std::vector<std::vector<int64_t>> selected(one["input"]["num_tokens"].get<size_t>());
  auto rows = used_rows(routing.plan, group, one["input"]["num_experts"]);
  if (settings.family->has_ranked_choices) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.choice < b.choice; });
  }
  for (const auto& row : rows) {
    selected[row.token].push_back(row.expert);
  }
  CHECK(json(selected) == one["expect"]["selected"]);
}

}  // namespace

#define MOE_NEED_ORACLE()                                                       \
  if (oracle_cases().empty()) {                                                 \
    MOE_SKIP("no golden cases: put the oracle folder next to the shared data"); \
  }

TEST_CASE("top-k routers match the golden cases", "[route]") {
  MOE_NEED_ORACLE();
  const auto cases = oracle_cases_of("topk");
  REQUIRE(cases.size() >= 38);
  for (const auto& one : cases) {
    INFO(one.at("name"));
    RouterSettings settings = settings_of(one.at("input"), "topk");
    check_decisions(one, settings);
    check_stats(one, settings);
    check_combine(one, settings, "combine_st");
    check_loss(one, settings, &route::AuxLosses::load_balance, "lb_first");
    settings.straight_through = false;
    check_combine(one, settings, "combine_nost");
    settings.lb_count = route::LbCount::kSelected;
    check_loss(one, settings, &route::AuxLosses::load_balance, "lb_selected");
  }
}

TEST_CASE("top-p and ReLU routers match the golden cases", "[route]") {
  MOE_NEED_ORACLE();
  using route::AuxLosses;
  struct Family {
    const char* name;
    size_t min_cases;
    std::vector<std::pair<at::Tensor AuxLosses::*, const char*>> losses;
  };
  for (const auto& [name, min_cases, losses] : std::vector<Family>{
           {"topp",
            7,
            {{&AuxLosses::load_balance, "lb_selected"}, {&AuxLosses::entropy, "entropy"}}},
           {"relu", 5, {{&AuxLosses::l1, "l1"}}}}) {
    const auto cases = oracle_cases_of(name);
    REQUIRE(cases.size() >= min_cases);
    for (const auto& one : cases) {
      INFO(one.at("name"));
      const RouterSettings settings = settings_of(one.at("input"), name);
      check_selected(one, settings);
      check_stats(one, settings);
      check_combine(one, settings, "combine");
      for (const auto& [loss, loss_name] : losses) {
        check_loss(one, settings, loss, loss_name);
      }
    }
  }
}

TEST_CASE("lambda follows the sparsity of the golden case", "[route]") {
  MOE_NEED_ORACLE();
  for (const auto& one : oracle_cases_of("lambda")) {
    const json& input = one.at("input");
    double lambda = input.at("lambda0");
    const double target = 1 - input["k"].get<double>() / input["num_experts"].get<double>();
    CHECK(target == one["expect"]["target"].get<double>());
    for (size_t step = 0; step < input.at("sparsity").size(); ++step) {
      CHECK(lambda == Approx(one["expect"]["lambdas"][step].get<double>()).epsilon(1e-12));
      lambda = route::next_lambda(lambda, input["sparsity"][step], target, input["multiplier"]);
    }
    CHECK(lambda == Approx(one["expect"]["lambdas"].back().get<double>()).epsilon(1e-12));
  }
}

TEST_CASE("capacities equal those of the golden case", "[route]") {
  MOE_NEED_ORACLE();
  for (const auto& one : oracle_cases_of("capacity")) {
    const json& rows = one.at("input").at("rows");
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::optional<double> factor =
          rows[i][0].is_null() ? std::nullopt : std::optional(rows[i][0].get<double>());
      INFO(rows[i]);
      CHECK(route::capacity_slots(factor, rows[i][1], rows[i][2]) == one["expect"]["slots"][i]);
    }
  }
}

}  // namespace moe::test
