// A router that is added from outside, by the recipe "Adding a router" of core/route/README.md:
// parsed, stored, routed, trained and resumed like the built-in ones.

#include <torch/csrc/autograd/autograd.h>

#include "core/model/config/config.h"
#include "core/route/plan.h"
#include "core/route/route.h"
#include "core/upcycle/inspect.h"
#include "tests/support/train_world.h"

using namespace moe;

namespace {

// Token i takes experts i, i + 1, ... i + k - 1, modulo E, independent of its logits.
std::vector<route::Rule> rules(const route::RouterSettings& settings) {
  return {[k = settings.k](const route::RouteInput& input, const route::Plan&) {
    const at::Tensor token = at::arange(input.tokens(), input.source_rank.options()).unsqueeze(1);
    const at::Tensor choice = at::arange(k, input.source_rank.options());
    const at::Tensor experts = (token + choice).remainder(input.experts());
    const route::Rows rows = route::sort_by_group(
        input, route::request_rows(input, experts, at::ones_like(experts, at::kBool), 0));
    return route::with_rows(input, rows, rows.token.size(0), {});
  }};
}

route::AuxLosses losses(const at::Tensor& logits, const route::RouteInput& input,
                        const at::Tensor& count, const route::RouterSettings& /*settings*/) {
  route::AuxLosses all;
  route::add_load_balance_loss(all, logits, input, (count > 0).to(logits.scalar_type()));
  return all;
}

int64_t experts_per_token(const route::RouterSettings& settings, int64_t /*experts*/) {
  return settings.k;
}

route::RouterFamily turns() {
  return {
      .name = "turns",
      .word = "turns",
      .title = "round-robin",
      .syntax = "turns:k=K",
      .forms = "turns:k=2",
      .examples = {"turns:k=2"},
      .help = "a token takes the next k experts in turn",
      .options = [](route::RouterSettings& s) -> route::RouterOptions {
        auto k = route::k_option(s);
        k.messages[route::OptionMessage::kMissing] = "needs k, e.g. turns:k=2";
        return {k};
      },
      .has_ranked_choices = false,
      .load_balance_coef = 1e-2,
      .expected_rows_at_init =
          [](const route::RouterSettings& s, int64_t tokens, int64_t /*experts*/) {
            return static_cast<double>(tokens * s.k);
          },
      .active_experts = experts_per_token,
      .typical_active_experts = experts_per_token,
      .unnormalized_reason = "the weights are probabilities of k experts",
      .own = {"moe_turns", "MoeTurnsForCausalLM"},
      .hf_experts_per_token = experts_per_token,
      .hf_compatibility =
          [](const route::RouterSettings&, int64_t) {
            return route::HfCompatibility{{}, {"round-robin routing"}};
          },
  };
}

void add_turns() {
  static const bool is_added = [] {
    route::add_router(turns(), {route::softmax_scores, rules, route::probability_gates, losses});
    return true;
  }();
  CHECK(is_added);
}

}  // namespace

TEST_CASE("an added router is parsed, stored and described like the built-in ones", "[extension]") {
  add_turns();
  const auto settings = route::parse_router("turns:k=2");
  CHECK(settings.family->name == "turns");
  CHECK(settings.k == 2);
  CHECK(route::to_string(settings) == "turns:k=2");
  CHECK(route::router_from_json(Json(route::to_json(settings)), "config.json") == settings);
  CHECK(route::router_help().find("turns:k=K\n      a token takes the next k") !=
        std::string::npos);
  CHECK_THROWS_AS(route::parse_router("turns:k=0"), UserError);
  CHECK(route::parse_router("top2+ir").family == &route::default_family());
}

TEST_CASE("an added router gets gates, losses, counters and gradients", "[extension]") {
  add_turns();
  at::manual_seed(1);
  const at::Tensor logits = at::randn({10, 4}).requires_grad_();
  const auto routing = route::route(logits, route::parse_router("turns:k=2"),
                                    route::partition_tokens(10, /*ranks=*/2));
  const at::Tensor token = at::arange(10).unsqueeze(1);
  const at::Tensor expected =
      at::zeros({10, 4}).scatter_(1, at::cat({token.remainder(4), (token + 1).remainder(4)}, 1), 1);
  CHECK(at::equal(routing.count, expected));
  CHECK(at::allclose(routing.combine, expected * at::softmax(logits, 1)));
  torch::autograd::backward({routing.weights.sum() + routing.losses.load_balance});
  CHECK(logits.grad().abs().sum().item<double>() > 0);
}

TEST_CASE("a model with an added router is upcycled, trained and resumed", "[extension]") {
  add_turns();
  test::TrainWorld world("turns:k=2");
  world.settings.save_every = 4;
  const auto losses = test::losses(world.train("whole"));
  CHECK(losses.back() < losses.front());
  test::check_resumes(world, world.dir / "whole", {5});
  const Json config = read_json(world.dir / "whole/final/config.json");
  CHECK(config["model_type"] == "moe_turns");
}
