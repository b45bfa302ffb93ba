#pragma once
// ReLU routing (ReMoE, Wang et al.): an expert runs for a token iff its logit is positive, and an
// L1 loss whose weight follows the sparsity keeps the mean at k of E experts.

#include <limits>

#include "core/route/router.h"

namespace moe::route {

struct RouterFunctions;

struct Relu {
  static RouterFunctions functions();

  static RouterOptions options(RouterSettings& s) {
    RouterOption k = k_option(s);
    k.option.help = "sets the target sparsity 1 - k/E";
    k.traits |= kTrainingOnly;
    k.sentences[Sentence::kMissing] =
        "needs k, which sets the target sparsity 1 - k/E, e.g. relu:k=1";
    k.sentences[Sentence::kNoteInTraining] = "k moves the target sparsity";
    return {
        k,
        {.option = {.name = "lambda0",
                    .member = &s.lambda0,
                    .help = "weight of the L1 loss in the first step",
                    .range = {.most = kAnyNumber,
                              .is_checked = true,
                              .rule = "lambda0 must be a number from 0, is {}"}},
         .key = "lambda0",
         .takes = "a number from 0",
         .traits = kTrainingOnly},
        {.option = {.name = "mult",
                    .member = &s.lambda_multiplier,
                    .help = "what lambda is multiplied by while the model is too dense, else "
                            "divided",
                    .range = {.least = 1,
                              .most = kAnyNumber,
                              .is_checked = true,
                              .rule = "the multiplier of lambda must be a number from 1, is {}"}},
         .key = "lambda_multiplier",
         .takes = "a number from 1",
         .traits = kTrainingOnly},
        {.option = {.name = "l1",
                    .member = choice<L1Weights, L1Weights>(
                        "l1", s.l1,
                        {{"refined", L1Weights::kRefined}, {"plain", L1Weights::kPlain}}),
                    .help = "the L1 loss weighs experts by their load, or all alike"},
         .key = "l1",
         .takes = "refined or plain",
         .traits = kTrainingOnly},
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
        .options = options,
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
  static constexpr double kAnyNumber = std::numeric_limits<double>::max();
};

}  // namespace moe::route
