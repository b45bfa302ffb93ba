#pragma once
// ReLU routing (ReMoE, Wang et al.): a token uses every expert with a positive logit. An L1 loss,
// whose coefficient follows the sparsity, keeps the mean at k of E experts.

#include <limits>

#include "core/route/router.h"

namespace moe::route {

struct Relu {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "relu",
        .word = "relu",
        .title = "ReLU",
        .syntax = "relu:k=K",
        .forms = "relu:k=1,lambda0=1e-8,mult=1.2,l1=refined",
        .examples = {"relu:k=1"},
        .help = "a token uses every expert with a positive logit",
        .options = options,
        .has_softmax_scores = false,
        .has_ranked_choices = false,
        .can_leave_experts_dead = true,
        .no_load_balance = "its adaptive L1 loss balances the load",
        .has_adaptive_l1 = true,
        .expected_rows_at_init =
            [](const RouterSettings&, int64_t tokens, int64_t experts) {
              return static_cast<double>(tokens * experts) / 2;  // half of all logits are positive
            },
        .active_experts = experts_per_token,
        .typical_active_experts = [](const RouterSettings&, int64_t) -> int64_t { return 2; },
        .unnormalized_reason = "ReLU gates are not normalized, their sum is any number from 0",
        .own = {"moe_relu", "MoeReluForCausalLM"},
        .hf_experts_per_token = experts_per_token,
        .hf_compatibility =
            [](const RouterSettings&, int64_t) {
              return HfCompatibility{{}, {"ReLU routing"}};
            },
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    RouterOption k = k_option(s);
    k.help = "sets the target sparsity 1 - k/E";
    k.traits |= kTrainingOnly;
    k.messages[OptionMessage::kMissing] =
        "needs k, which sets the target sparsity 1 - k/E, e.g. relu:k=1";
    k.messages[OptionMessage::kNoteInTraining] = "k changes the target sparsity";
    return {
        k,
        {.name = "lambda0",
         .key = "lambda0",
         .member = &s.lambda0,
         .values = "a number from 0",
         .help = "coefficient of the L1 loss in the first step",
         .traits = kTrainingOnly,
         .range = number_between(0, kLargest)},
        {.name = "mult",
         .key = "lambda_multiplier",
         .member = &s.lambda_multiplier,
         .values = "a number from 1",
         .help = "factor by which lambda grows while the sparsity is below the target, and shrinks "
                 "otherwise",
         .traits = kTrainingOnly,
         .range = number_between(1, kLargest)},
        {"l1", "l1",
         choice<L1Weights, L1Weights>(
             "l1", s.l1, {{"refined", L1Weights::kRefined}, {"plain", L1Weights::kPlain}}),
         "refined or plain", "the L1 loss weights experts by their load, or all equally",
         kTrainingOnly},
    };
  }

  static int64_t experts_per_token(const RouterSettings& s, int64_t) { return s.k; }
};

}  // namespace moe::route
