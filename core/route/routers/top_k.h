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

  static RouterOptions options(RouterSettings& s) {
    RouterOption k = k_option(s), capacity = capacity_option(s);
    k.position = OptionPosition::kHead;
    k.option.help = "experts that a token requests";
    k.traits |= kChangesGates;
    k.sentences[Sentence::kMissing] =
        "needs a whole number of experts per token, e.g. top1 or top2";
    k.sentences[Sentence::kNote] = "k was {}; the capacity factor is kept unless given";
    capacity.option.fallback = "k";
    return {
        k,
        {.option = {.name = "ir",
                    .member = &s.ir,
                    .help = "intra-GPU rectification: a token that was refused goes to the best "
                            "expert of its own rank"},
         .key = "ir",
         .position = OptionPosition::kModifier},
        {.option = {.name = "fr",
                    .member = &s.fr,
                    .help = "fill-in rectification: slots that are left go to the (k+1)-th "
                            "choices"},
         .key = "fr",
         .position = OptionPosition::kModifier},
        capacity,
        {.option = {.name = "gate",
                    .member = choice<GateNorm, GateNorm>(
                        "gate", s.gate_norm,
                        {{"selected", GateNorm::kSelected}, {"none", GateNorm::kNone}}),
                    .help = "weights are softmax over the experts that accepted, or over all"},
         .key = "gate_norm",
         .takes = "selected or none",
         .traits = kChangesGates,
         .sentences = {{Sentence::kNeedsForce, "another gate rescales every MoE output"}}},
        {.option = {.name = "st",
                    .member = &s.straight_through,
                    .help = "straight-through gradient: the router learns from the full softmax"},
         .key = "straight_through",
         .takes = "on or off",
         .traits = kTrainingOnly},
        {.option = {.name = "lb",
                    .member = choice<LbCount, LbCount>(
                        "lb", s.lb_count,
                        {{"first", LbCount::kFirst}, {"selected", LbCount::kSelected}}),
                    .help = "what the load-balance loss counts: first choices, or all k requests"},
         .key = "lb_count",
         .takes = "first or selected",
         .traits = kTrainingOnly},
        {.option = {.name = "order",
                    .member = choice<SlotOrder, SlotOrder>(
                        "order", s.slot_order,
                        {{"choice", SlotOrder::kChoice}, {"score", SlotOrder::kScore}}),
                    .help = "slots are given choice by choice, or to the k requests by score"},
         .key = "slot_order",
         .takes = "choice or score"},
        {.option = {.name = "bias",
                    .member = &s.bias_rate,
                    .help = "a bias of each expert, added to its scores where tokens choose, moves "
                            "by so much a step towards equal load; 0: it stands still",
                    .range = {.most = 1,
                              .is_checked = true,
                              .rule = "bias must be a number from 0 to 1, is {}"}},
         .key = "bias_rate",
         .takes = "a number from 0 to 1",
         .traits = kResetIfUnnamed,
         .sentences = {{Sentence::kNote,
                        "bias was {}; a router that names none chooses by its scores alone"}}},
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
        .options = options,
        .derive = [](RouterSettings& s) { s.capacity_factor = static_cast<double>(s.k); },
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
        .own = {"moe_biased", "MoeBiasedForCausalLM"},
        .is_own = [](const RouterSettings& s) { return s.bias_rate.has_value(); },
        .stock_experts = [](const RouterSettings& s, int64_t) { return s.k; },
        .stock_experts_are_k = true,
        .stock_words = stock_words,
    };
  }

 private:
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
