// The expert-choice router: against plain loops and the balance that its paper promises, in
// config.json and in a whole layer. It is refused for inference. tests/cli/expert_choice_test.cpp
// tests it in the commands.

#include "core/model/config/config.h"
#include "core/model/moe/layer.h"
#include "core/model/moe/token_dispatcher.h"
#include "core/route/router_override.h"
#include "tests/core/route/promises.h"
#include "tests/support/gradcheck.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::test {
namespace {

// Returns the C_r tokens of each rank with the highest score for each expert, the lower token first
// among equals, as "e0:t3 e0:t5 e1:t0".
std::string taken_by_loops(const Matrix& scores, std::optional<double> capacity_factor,
                           const route::RoutingGroup& group) {
  const size_t experts = scores.empty() ? 0 : scores[0].size();
  std::string words;
  for (size_t expert = 0; expert < experts; ++expert) {
    for (int64_t rank = 0; rank < group.ranks; ++rank) {
      std::vector<size_t> tokens;
      for (size_t token = 0; token < scores.size(); ++token) {
        if (group.home[token] == rank) {
          tokens.push_back(token);
        }
      }
      std::stable_sort(tokens.begin(), tokens.end(),
                       [&](size_t a, size_t b) { return scores[a][expert] > scores[b][expert]; });
      const int64_t slots = route::capacity_slots(
          capacity_factor, static_cast<int64_t>(tokens.size()), static_cast<int64_t>(experts));
      for (int64_t slot = 0; slot < slots; ++slot) {
        words += fmt::format("{}e{}:t{}", words.empty() ? "" : " ", expert, tokens.at(slot));
      }
    }
  }
  return words;
}

std::string taken(const route::Routing& routing, const route::RoutingGroup& group) {
  return words_of(used_rows(routing.plan, group, routing.input.experts()), routing.input.k);
}

}  // namespace

TEST_CASE("every expert takes the tokens with the highest scores, as plain loops do", "[model]") {
  std::mt19937 random(6);
  for (int round = 0; round < 60; ++round) {
    const int64_t ranks = std::array<int64_t, 3>{1, 2, 4}[round % 3];
    const auto input = random_routing(random, round * 3 % 50, 8, ranks, round % 2 == 0 ? 0 : 0.5,
                                      round % 5 == 0 ? 0.3 : 0);
    for (const char* text : {"expert-choice", "expert-choice:cf=0.3", "expert-choice:cf=inf"}) {
      const auto settings = route::parse_router(text);
      INFO(text << " round " << round);
      const auto routing = route::route(input.logits, settings, input.group);
      CHECK(taken(routing, input.group) ==
            taken_by_loops(matrix_of(routing.input.scores), settings.capacity_factor, input.group));
      const at::Tensor expected = at::softmax(input.logits, 1) * routing.count;
      CHECK((expected.numel() == 0 ||
             (routing.combine - expected).abs().max().item<double>() < 1e-6));
      CHECK_FALSE(routing.losses.load_balance.defined());
    }
  }
}

TEST_CASE("expert loads are equal, no request is dropped and every slot is used", "[model]") {
  std::mt19937 random(8);
  const auto input = random_routing(random, 64, 8, 1);
  const auto group = route::spread_over_ranks(64, 4);
  const auto routing = route::route(input.logits, route::parse_router("expert-choice"), group);
  const auto counted = route::read_counters({routing.counters})[0];
  // C_r = 2 * 16 / 8 = 4 tokens of each of 4 ranks.
  CHECK(counted.tokens_per_expert == std::vector<int64_t>(8, 16));
  CHECK(counted.slots_total == 128);
  CHECK(counted.slots_used == 128);
  CHECK(counted.padding == 0);
  CHECK(counted.dropped_requests == 0);
  CHECK(counted.requests == 128);
  CHECK(counted.experts_per_token() == 2);
  CHECK(counted.unserved_tokens > 0);  // tokens that no expert took
  CHECK(counted.entropy_sum > 0);
}

TEST_CASE("expert choice is parsed, printed and stored", "[model]") {
  const auto settings = route::parse_router("Expert-Choice:CF=0.5");
  CHECK(to_string(settings) == "expert-choice:cf=0.5");
  CHECK(to_string(route::parse_router("expert-choice")) == "expert-choice");
  CHECK(to_full_string(route::parse_router("expert-choice")) == "expert-choice:cf=2");
  CHECK(route::router_from_json(Json(to_json(settings)), "c") == settings);
  CHECK(to_json(settings)["family"] == "expert_choice");
  CHECK(to_json(settings)["k"].is_null());
  CHECK_THAT(user_error_of([] { route::parse_router("expert-choice+ir"); }),
             contains_text("'expert-choice' has no modifiers"));
  CHECK_THAT(user_error_of([] { route::parse_router("expert-choise"); }),
             contains_text("did you mean 'expert-choice'?"));
  CHECK_THAT(
      user_error_of([&] { route::check_router(route::parse_router("expert-choice:cf=5"), 4); }),
      contains_text("'expert-choice:cf=5'") && contains_text("4 experts"));
  CHECK(to_string(route::with_granularity(settings, 4)) == "expert-choice");
  CHECK_FALSE(route::preserves_function(settings).exact);
  CHECK(route::default_lb_coef(settings) == 0);

  model::MoeConfig moe;
  moe.router = settings;
  CHECK(model::written_form(moe) == model::FolderForm::kMoe);
}

TEST_CASE("expert choice may train and is refused for inference", "[model]") {
  const route::StoredRouter stored{route::parse_router("expert-choice"), 4, 8};
  CHECK_THAT(
      user_error_of([&] { route::override_router(stored, {}, false, route::Purpose::kEvaluate); }),
      contains_text("'expert-choice' is for training only") && contains_text("--router top2"));
  CHECK_NOTHROW(route::override_router(stored, {}, false, route::Purpose::kTrain));
  CHECK_FALSE(user_error_of([&] { route::generation_router(stored.router); }).empty());
  const auto instead =
      route::override_router(stored, {"top2", "", {}}, false, route::Purpose::kEvaluate);
  CHECK(to_string(instead.router) == "top2");
  CHECK(instead.notes.size() == 1);  // the same scores, another sum of weights
  CHECK(route::override_router(stored, {"", "0.5", {}}, false, route::Purpose::kTrain)
            .router.capacity_factor == 0.5);
}

TEST_CASE("a layer with expert choice equals plain sums and has the gradient of finite differences",
          "[model]") {
  at::manual_seed(43);
  const int64_t tokens = 10, experts = 4, width = 6, inner = 5;
  const auto options = at::TensorOptions(at::kDouble);
  const auto x = at::randn({tokens, width}, options);
  const model::MoeWeights weights = {at::randn({experts, width}, options),
                                     at::randn({experts, 2 * inner, width}, options) * 0.5,
                                     at::randn({experts, width, inner}, options) * 0.5};
  const auto dy = at::randn({tokens, width}, options);
  const auto group = route::spread_over_ranks(tokens, 2);
  const auto settings = route::parse_router("expert-choice:cf=1");
  const auto routed = [&](const at::Tensor& router) {
    return route::route(kernels::linear_in_f32(x, router), settings, group);
  };
  const auto output = [&](const at::Tensor& router) {
    return model::local_dispatcher()->run(x, routed(router), {weights.gate_up, weights.down}, 1.0);
  };
  // The output of a token is the sum over the experts that took it, weighted by their
  // probabilities.
  const auto routing = routed(weights.router);
  for (int64_t token = 0; token < tokens; ++token) {
    at::Tensor expected = at::zeros({width}, options);
    for (int64_t expert = 0; expert < experts; ++expert) {
      const auto hidden = at::mv(weights.gate_up[expert], x[token]);
      const auto out = at::mv(weights.down[expert], at::silu(hidden.narrow(0, 0, inner)) *
                                                        hidden.narrow(0, inner, inner));
      expected =
          expected + routing.count[token][expert] * routing.input.scores[token][expert] * out;
    }
    CHECK(distance(output(weights.router)[token], expected) < 1e-12);
  }
  const auto loss = [&](const at::Tensor& router) { return (output(router) * dy).sum(); };
  CHECK(distance(autograd(loss, weights.router), finite_difference(loss, weights.router)) <
        kGradTolerance);
}

}  // namespace moe::test
