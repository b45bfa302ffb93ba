#pragma once
// Expert choice (Zhou et al. 2022, section 3.2): every expert takes the C_r tokens of a rank with
// its highest scores, so loads are equal by construction and no balance loss is needed. The choice
// depends on later tokens of the batch, so the router is for training only.

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct ExpertChoice {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "expert_choice",
        .word = "expert-choice",
        .title = "expert-choice",
        .syntax = "expert-choice[:cf=X]",
        .forms = "expert-choice:cf=2",
        .examples = {"expert-choice", "expert-choice:cf=0.5", "expert-choice:cf=inf"},
        .help = "every expert takes the tokens with its highest scores; for training only",
        .options = options,
        .set_defaults = [](RouterSettings& s) { s.capacity_factor = 2; },
        .has_slots = true,
        .no_inference = "experts choose among all tokens of a batch, including later ones",
        .no_load_balance = "every expert takes equally many tokens",
        .expected_rows_at_init =
            [](const RouterSettings& s, int64_t tokens, int64_t experts) {
              return std::ceil(mean_choices(s, experts) * tokens);
            },
        .active_experts = mean_experts,
        .typical_active_experts = mean_experts,
        .unnormalized_reason =
            "expert-choice weights are probabilities of the experts that took a "
            "token, whose sum is between 0 and 1",
        .own = {"moe_expert_choice", "MoeExpertChoiceForCausalLM"},
        .hf_experts_per_token = mean_experts,
        .hf_compatibility =
            [](const RouterSettings&, int64_t) {
              return HfCompatibility{{}, {"expert-choice routing"}};
            },
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    RouterOption capacity = capacity_option(s);
    capacity.traits |= kChangesGates;
    capacity.messages[OptionMessage::kTooMany] =
        "router '{}' lets an expert take {} times its share of the tokens, but there are only {} "
        "experts: use a smaller cf, or cf=inf for all tokens";
    return {capacity};
  }

  // Mean number of experts of a token: C E / T = CF.
  static double mean_choices(const RouterSettings& s, int64_t experts) {
    return s.capacity_factor.value_or(experts);
  }

  static int64_t mean_experts(const RouterSettings& s, int64_t experts) {
    return std::clamp<int64_t>(std::ceil(mean_choices(s, experts)), 1, experts);
  }
};

}  // namespace moe::route
