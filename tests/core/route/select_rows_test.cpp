// The reference of kernels/select_rows.h makes the plans that the rules of core/route make.

#include "kernels/select_rows.h"

#include "core/route/router_settings.h"
#include "core/route/routers.h"
#include "tests/support/catch.h"
#include "tests/support/selection.h"

using namespace moe::route;

namespace {

struct Plans {
  Plan by_rules;
  moe::test::SelectedTensors selected;
};

Plans both(const torch::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group) {
  const Routing routing = route(logits, settings, group);
  const int64_t experts = logits.size(1);
  const moe::kernels::SelectShape shape{logits.size(0),
                                        experts,
                                        group.ranks,
                                        std::min(settings.k + 1, experts),
                                        settings.k,
                                        settings.fr && settings.k < experts,
                                        settings.ir,
                                        settings.slot_order == SlotOrder::kScore};
  const torch::Tensor home = routing.input.home.to(torch::kInt);
  torch::Tensor capacity = torch::full({group.ranks}, 0x7fffffff, torch::kInt);
  if (!routing.input.dropless) {
    capacity = torch::tensor(routing.input.capacity, torch::kLong).to(torch::kInt);
  }
  auto from = moe::test::choices_of(logits, home, group.ranks, shape.choices);
  from.scores = routing.input.scores.contiguous();
  return {routing.plan, moe::test::selected_by_reference(shape, from, home, capacity)};
}

// Both lists end in unused rows, as many as each had room for.
bool same_list(const torch::Tensor& a, const torch::Tensor& b, int64_t unused) {
  const int64_t common = std::min(a.size(0), b.size(0));
  const auto rest = [&](const torch::Tensor& all) {
    return all.narrow(0, common, all.size(0) - common);
  };
  return torch::equal(a.narrow(0, 0, common), b.narrow(0, 0, common)) &&
         (rest(a) == unused).all().item<bool>() && (rest(b) == unused).all().item<bool>();
}

}  // namespace

TEST_CASE("select_rows' reference makes the plans of the rules", "[route]") {
  torch::manual_seed(1);
  for (const auto* text : {"top1",
                           "top2",
                           "top1+ir",
                           "top1+fr",
                           "top1+ir+fr",
                           "top2+ir+fr:cf=0.7",
                           "top2+ir+fr:order=score",
                           "top3:order=score",
                           "top2:cf=inf",
                           "top2+fr:cf=inf",
                           "top4+ir+fr:cf=2"}) {
    for (const int64_t tokens : {0, 1, 31, 33, 64}) {
      for (const int64_t ranks : {1, 2, 4}) {
        for (const bool ties : {false, true}) {
          CAPTURE(text, tokens, ranks, ties);
          torch::Tensor logits = torch::randn({tokens, 4}) * 2;
          logits = ties ? logits.round() : logits;
          RoutingGroup group = spread_over_ranks(tokens, ranks);
          if (tokens > 5) {
            group.home[2] = group.home[5] = -1;
          }
          const Plans plans = both(logits, parse_router(text), group);
          CHECK(same_list(plans.by_rules.token, plans.selected.token, 0));
          CHECK(same_list(plans.by_rules.expert, plans.selected.expert, 4));
          CHECK(same_list(plans.by_rules.choice, plans.selected.choice, 0));
          CHECK(same_list(plans.by_rules.count, plans.selected.count, 0));
          CHECK(torch::equal(plans.by_rules.rows, plans.selected.rows));
          CHECK(same_list(plans.by_rules.overflow_token, plans.selected.overflow_token, 0));
          CHECK(same_list(plans.by_rules.overflow_expert, plans.selected.overflow_expert, 4));
          CHECK(same_list(plans.by_rules.overflow_choice, plans.selected.overflow_choice, 0));
        }
      }
    }
  }
}
