#pragma once
// Top-p routing (Huang et al., "Harder Tasks Need More Experts"): a token takes experts in
// descending order of probability until their sum reaches p, so tokens with a flat distribution use
// more experts.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct TopP {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "topp",
        .word = "topp",
        .title = "top-p",
        .syntax = "topp:P",
        .forms = "topp:0.4,max=2",
        .examples = {"topp:0.4", "topp:0.7,max=2"},
        .help = "a token takes experts, best first, until their probabilities sum to p",
        .options = options,
        .set_defaults = [](RouterSettings& s) { s.lb_count = LbCount::kSelected; },
        .load_balance_coef = 1e-2,
        .entropy_coef = 1e-4,
        .expected_rows_at_init =
            [](const RouterSettings& s, int64_t tokens, int64_t experts) {  // equal probabilities
              return tokens * std::ceil(s.p * experts);
            },
        .active_experts = [](const RouterSettings&, int64_t) -> int64_t { return 1; },
        .typical_active_experts = [](const RouterSettings&, int64_t) -> int64_t { return 2; },
        .unnormalized_reason = "top-p weights are probabilities that sum to p or more, not to 1",
        .hf_experts_per_token = hf_experts_per_token,
        .hf_compatibility =
            [](const RouterSettings& s, int64_t experts) {
              return HfCompatibility{
                  {fmt::format("the folder loads, routed as top-{} of {} experts, not renormalised",
                               hf_experts_per_token(s, experts), experts)},
                  {fmt::format("top-p routing (p={})", s.p)}};
            },
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    return {
        {.name = "p",
         .key = "p",
         .member = &s.p,
         .values = "a number from 0 to 1",
         .help = "probability to reach",
         .traits = kChangesGates,
         .messages = {{OptionMessage::kMissing,
                       "needs the probability to reach, from 0 to 1, e.g. topp:0.4"}},
         .range = number_between(0, 1),
         .position = OptionPosition::kFirst},
        {.name = "max",
         .key = "max_experts",
         .member = &s.max_experts,
         .values = "a whole number from 1 to the number of experts",
         .help = "upper bound of experts per token",
         .traits = kResetIfUnnamed | kChangesGates | kScalesWithGranularity,
         .messages = {{OptionMessage::kTooMany,
                       "router '{}' keeps up to {} experts per token, the layers have {}: use a "
                       "smaller max"}},
         .range = whole_between(1, kMaxExperts)},
    };
  }

  static int64_t hf_experts_per_token(const RouterSettings& s, int64_t experts) {
    return std::min(s.max_experts.value_or(2), experts);
  }
};

}  // namespace moe::route
