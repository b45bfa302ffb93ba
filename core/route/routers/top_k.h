#pragma once
// Top-k with expert capacity, fill-in and intra-GPU rectification (Rectify-Router, Zeng et al.):
// every token requests its k best experts, experts accept by score until their slots are full.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct RouterFunctions;

struct TopK {
  static RouterFunctions functions();

  static std::vector<RouterOption> options() {
    return {
        k(),
        {.name = "ir",
         .key = "ir",
         .value = member(&RouterSettings::ir),
         .position = OptionPosition::kModifier,
         .help = "intra-GPU rectification: a token that was refused goes to the best expert of "
                 "its own rank"},
        {.name = "fr",
         .key = "fr",
         .value = member(&RouterSettings::fr),
         .position = OptionPosition::kModifier,
         .help = "fill-in rectification: slots that are left go to the (k+1)-th choices"},
        capacity(),
        {.name = "gate",
         .key = "gate_norm",
         .value = member(&RouterSettings::gate_norm),
         .takes = "selected or none",
         .words = {"selected", "none"},
         .help = "weights are softmax over the experts that accepted, or over all",
         .changes_gates = true,
         .needs_force = "another gate rescales every MoE output"},
        {.name = "st",
         .key = "straight_through",
         .value = member(&RouterSettings::straight_through),
         .takes = "on or off",
         .help = "straight-through gradient: the router learns from the full softmax",
         .is_training_only = true},
        {.name = "lb",
         .key = "lb_count",
         .value = member(&RouterSettings::lb_count),
         .takes = "first or selected",
         .words = {"first", "selected"},
         .help = "what the load-balance loss counts: first choices, or all k requests",
         .is_training_only = true},
        {.name = "order",
         .key = "slot_order",
         .value = member(&RouterSettings::slot_order),
         .takes = "choice or score",
         .words = {"choice", "score"},
         .help = "slots are given choice by choice, or to the k requests by score"},
        bias(),
    };
  }

  static RouterFamily family() {
    return {
        .name = "topk",
        .word = "top",
        .title = "top-k",
        .syntax = "top{K}[+ir][+fr][:cf=X|inf,...]",
        .forms = "top1, top2+ir+fr:cf=1.5,gate=selected,st=on,lb=first,order=choice",
        .near_words = {"top1", "top2"},
        .examples = {"top1", "top2", "top3:order=score", "top2:cf=inf,gate=none",
                     "top2:bias=0.001"},
        .help = "every token requests its k best experts, of a bounded number of slots",
        .options = options(),
        .has_slots = true,
        .tokens_request = true,
        .most_choices = [](const RouterSettings& s, int64_t) { return s.k; },
        .for_generation =
            [](RouterSettings s) {
              s.capacity_factor.reset();
              s.fr = false;
              return s;
            },
        .load_balance_coef = 1e-2,
        .fresh_rows = fresh_rows,
        .active_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .usual_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .unnormalised = [](const RouterSettings& s) -> std::string {
          return s.gate_norm == GateNorm::kSelected
                     ? ""
                     : "gate=none leaves weights that do not sum to 1 (gate=selected does)";
        },
        .stock_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .stock_experts_are_k = true,
        .stock_words = stock_words,
    };
  }

 private:
  static RouterOption k() {
    RouterOption option = k_option();
    option.position = OptionPosition::kHead;
    option.help = "experts that a token requests";
    option.when_missing = "needs a whole number of experts per token, e.g. top1 or top2";
    option.changes_gates = true;
    option.note = "k was {}; the capacity factor is kept unless given";
    return option;
  }

  static RouterOption bias() {
    return {.name = "bias",
            .key = "bias_rate",
            .value = member(&RouterSettings::bias_rate),
            .takes = "a number from 0 to 1",
            .help =
                "a bias of each expert, added to its scores where tokens choose, moves by so "
                "much a step towards equal load; 0: it stands still",
            .in_range = [](double v) { return v >= 0 && v <= 1; },
            .out_of_range = "bias must be a number from 0 to 1, is {}",
            .is_kept = false,
            .note = "bias was {}; a router that names none chooses by its scores alone",
            .own = {"moe_biased", "MoeBiasedForCausalLM"}};
  }

  static RouterOption capacity() {
    RouterOption option = capacity_option();
    option.default_value = [](const RouterSettings& s) {
      return OptionValue(static_cast<double>(s.k));
    };
    return option;
  }

  // Fill-in may use every slot; without it there are no more rows than requests.
  static double fresh_rows(const RouterSettings& s, int64_t tokens, int64_t) {
    const auto requests = static_cast<double>(tokens * s.k);
    if (!s.capacity_factor) {
      return requests;
    }
    const double slots = std::ceil(*s.capacity_factor * static_cast<double>(tokens));
    return s.fr ? slots : s.ir ? requests : std::min(requests, slots);
  }

  // Stock qwen2_moe and mixtral: softmax over all experts, the best k of them, renormalised or not,
  // nothing dropped.
  static StockWords stock_words(const RouterSettings& s, int64_t experts) {
    StockWords words;
    words.computed.push_back(fmt::format(
        "top-{} of {} experts without dropping, weights {}", s.k, experts,
        s.gate_norm == GateNorm::kSelected ? "summing to 1" : "as the softmax gives them"));
    if (s.bias_rate) {
      words.not_computed.emplace_back(
          "bias: tokens choose by score plus a bias of each expert, which weights do not see");
    }
    if (s.capacity_factor) {
      words.not_computed.push_back(
          fmt::format("expert capacity (cf={}): stock tools drop nothing", *s.capacity_factor));
    }
    if (s.ir) {
      words.not_computed.emplace_back(
          "+ir: dropped requests go to the best expert of the token's own rank");
    }
    if (s.fr) {
      words.not_computed.push_back(
          fmt::format("+fr: free slots are filled with each token's choice {}", s.k + 1));
    }
    return words;
  }
};

}  // namespace moe::route
