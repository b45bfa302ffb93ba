#pragma once
// Expert choice (Zhou et al. 2022, "Mixture-of-Experts with Expert Choice Routing"): experts choose
// tokens. Every expert takes the C_r tokens of a rank that score highest for it, so that loads are
// equal by construction and no loss has to make them so. Whether a token is taken depends on the
// other tokens of its batch, later ones too: it may train, and is refused where a model is asked.

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct RouterFunctions;

struct ExpertChoice {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "expert_choice",
        .word = "expert-choice",
        .title = "expert-choice",
        .syntax = "expert-choice[:cf=X]",
        .forms = "expert-choice:cf=2",
        .near_words = {"expert-choice"},
        .examples = {"expert-choice", "expert-choice:cf=0.5", "expert-choice:cf=inf"},
        .help = "every expert takes the tokens that score highest for it; for training only",
        .no_modifiers =
            "+ir and +fr mend what capacity refuses, and experts that choose refuse "
            "nobody",
        .options = options,
        .start = [](RouterSettings& s) { s.capacity_factor = 2; },
        .has_slots = true,
        .most_choices = [](const RouterSettings&, int64_t experts) { return experts; },
        .no_inference =
            "experts choose among all tokens of a batch, later ones too, so that it "
            "may train but cannot be asked",
        .no_load_balance = "every expert takes equally many tokens",
        .fresh_rows =
            [](const RouterSettings& s, int64_t tokens, int64_t experts) {
              return std::ceil(s.capacity_factor.value_or(static_cast<double>(experts)) *
                               static_cast<double>(tokens));
            },
        .active_experts = mean_experts,
        .usual_experts = mean_experts,
        .unnormalised = [](const RouterSettings&) -> std::string {
          return "expert-choice weights are probabilities of the experts that took a token, which "
                 "sum to anything from 0 to 1";
        },
        .own = {"moe_expert_choice", "MoeExpertChoiceForCausalLM"},
        .stock_experts = mean_experts,
        .stock_words =
            [](const RouterSettings&, int64_t) {
              return StockWords{{}, {"expert-choice routing"}};
            },
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    RouterOption capacity = capacity_option(s);
    capacity.traits |= kChangesGates;
    capacity.sentences[Sentence::kTooMany] =
        "router '{}' lets an expert take {} times its share of the tokens, which the "
        "{} experts do not have: give a smaller cf, or cf=inf for all tokens";
    return {capacity};
  }

  // The mean over tokens, C E / T = cf, rounded up.
  static int64_t mean_experts(const RouterSettings& s, int64_t experts) {
    const double mean = s.capacity_factor.value_or(static_cast<double>(experts));
    return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(mean)), 1, experts);
  }
};

}  // namespace moe::route
