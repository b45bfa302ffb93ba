#pragma once
// Top-p routing (Huang et al., "Harder Tasks Need More Experts"): a token takes experts, best
// first, until their probabilities sum to p, so that an uncertain router runs more of them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct RouterFunctions;

struct TopP {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "topp",
        .word = "topp",
        .title = "top-p",
        .syntax = "topp:P",
        .forms = "topp:0.4,max=2",
        .near_words = {"topp"},
        .examples = {"topp:0.4", "topp:0.7,max=2"},
        .help = "a token takes experts, best first, until their probabilities sum to p",
        .no_modifiers = "+ir and +fr mend what capacity refuses, and only top-k has a capacity",
        .options = options,
        .start = [](RouterSettings& s) { s.lb_count = LbCount::kSelected; },
        .most_choices = [](const RouterSettings& s,
                           int64_t experts) { return s.max_experts.value_or(experts); },
        .load_balance_coef = 1e-2,
        .entropy_coef = 1e-4,
        .fresh_rows =
            [](const RouterSettings& s, int64_t tokens, int64_t experts) {  // equal probabilities
              return static_cast<double>(tokens) * std::ceil(s.p * static_cast<double>(experts));
            },
        .active_experts = [](const RouterSettings&, int64_t) -> int64_t { return 1; },
        .usual_experts = [](const RouterSettings&, int64_t) -> int64_t { return 2; },
        .unnormalised = [](const RouterSettings&) -> std::string {
          return "top-p weights are probabilities that sum to p or more, not to 1";
        },
        .stock_experts = stock_experts,
        .stock_words =
            [](const RouterSettings& s, int64_t experts) {
              return StockWords{
                  {fmt::format("the folder loads, routed as top-{} of {} experts, not renormalised",
                               stock_experts(s, experts), experts)},
                  {fmt::format("top-p routing (p={})", s.p)}};
            },
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    return {
        {.option = {.name = "p",
                    .member = &s.p,
                    .help = "probability to reach",
                    .range = {.most = 1,
                              .is_checked = true,
                              .rule = "p is a share of probability from 0 to 1, is {}"}},
         .key = "p",
         .position = OptionPosition::kFirst,
         .takes = "a number from 0 to 1",
         .traits = kChangesGates,
         .sentences = {{Sentence::kMissing,
                        "needs the probability to reach, from 0 to 1, e.g. topp:0.4"}}},
        {.option = {.name = "max",
                    .member = &s.max_experts,
                    .help = "keeps at most so many experts of a token",
                    .range = {.least = 1,
                              .most = kMaxExperts,
                              .is_checked = true,
                              .rule = "max must be a whole number from 1 to the number of "
                                      "experts, is {}"}},
         .key = "max_experts",
         .takes = "a whole number from 1",
         .traits = kResetIfUnnamed | kChangesGates | kScalesWithGranularity,
         .sentences = {{Sentence::kTooMany,
                        "router '{}' keeps up to {} experts per token, the layers have {}: give "
                        "a smaller max"}}},
    };
  }

  static int64_t stock_experts(const RouterSettings& s, int64_t experts) {
    return std::min(s.max_experts.value_or(2), experts);
  }
};

}  // namespace moe::route
