#pragma once
// ReLU routing (ReMoE, Wang et al.): an expert runs for a token iff its logit is positive, and an
// L1 loss whose weight follows the sparsity keeps the mean at k of E experts.

#include "core/route/router.h"

namespace moe::route {

struct RouterFunctions;

struct Relu {
  static RouterFunctions functions();

  static std::vector<RouterOption> options() {
    return {
        k(),
        {.name = "lambda0",
         .key = "lambda0",
         .value = member(&RouterSettings::lambda0),
         .takes = "a number from 0",
         .help = "weight of the L1 loss in the first step",
         .in_range = [](double v) { return v >= 0; },
         .out_of_range = "lambda0 must be a number from 0, is {}",
         .is_training_only = true},
        {.name = "mult",
         .key = "lambda_multiplier",
         .value = member(&RouterSettings::lambda_multiplier),
         .takes = "a number from 1",
         .help = "what lambda is multiplied by while the model is too dense, else divided",
         .in_range = [](double v) { return v >= 1; },
         .out_of_range = "the multiplier of lambda must be a number from 1, is {}",
         .is_training_only = true},
        {.name = "l1",
         .key = "l1",
         .value = member(&RouterSettings::l1),
         .takes = "refined or plain",
         .words = {"refined", "plain"},
         .help = "the L1 loss weighs experts by their load, or all alike",
         .is_training_only = true},
    };
  }

  static RouterFamily family() {
    return {
        .name = "relu",
        .word = "relu",
        .title = "ReLU",
        .syntax = "relu:k=K",
        .forms = "relu:k=1,lambda0=1e-8,mult=1.2,l1=refined",
        .near_words = {"relu"},
        .examples = {"relu:k=1"},
        .help = "a token takes every expert with a positive logit",
        .no_modifiers = "+ir and +fr mend what capacity refuses, and only top-k has a capacity",
        .options = options(),
        .has_softmax_scores = false,
        .ranks_choices = false,
        .can_leave_experts_dead = true,
        .most_choices = [](const RouterSettings&, int64_t experts) { return experts; },
        .no_load_balance = "its adaptive L1 spreads the load",
        .has_adaptive_l1 = true,
        .fresh_rows =
            [](const RouterSettings&, int64_t tokens, int64_t experts) {
              return static_cast<double>(tokens * experts) / 2;  // half of all logits are positive
            },
        .active_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .usual_experts = [](const RouterSettings&, int64_t) -> int64_t { return 2; },
        .unnormalised = [](const RouterSettings&) -> std::string {
          return "ReLU gates are not normalised, the weights of a token sum to anything from 0 up";
        },
        .own = {"moe_relu", "MoeReluForCausalLM"},
        .stock_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .stock_words =
            [](const RouterSettings&, int64_t) {
              return StockWords{{}, {"ReLU routing"}};
            },
    };
  }

 private:
  static RouterOption k() {
    RouterOption option = k_option();
    option.help = "sets the target sparsity 1 - k/E";
    option.when_missing = "needs k, which sets the target sparsity 1 - k/E, e.g. relu:k=1";
    option.is_training_only = true;
    option.note = "k moves the target sparsity";
    option.note_in_training_only = true;
    return option;
  }
};

}  // namespace moe::route
