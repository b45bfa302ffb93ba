#pragma once
// Top-k router with expert capacity, fill-in and intra-GPU rectification (Rectify-Router, Zeng et
// al.): every token requests its k best experts, and an expert accepts the requests with the
// highest scores up to its capacity, by default choice by choice.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/route/router.h"

namespace moe::route {

struct TopK {
  static RouterFunctions functions();

  static RouterFamily family() {
    return {
        .name = "topk",
        .word = "top",
        .title = "top-k",
        .syntax = "top{K}[+ir][+fr][:cf=X|inf,...]",
        .forms = "top1, top2+ir+fr:cf=1.5,gate=selected,st=on,lb=first,order=choice",
        .examples = {"top1", "top2", "top3:order=score", "top2:cf=inf,gate=none",
                     "top2:bias=0.001"},
        .help = "every token requests its k best experts, which have a limited number of slots",
        .options = options,
        .set_defaults = [](RouterSettings& s) { s.capacity_factor = s.k; },
        .has_slots = true,
        .has_token_requests = true,
        .load_balance_coef = 1e-2,
        .expected_rows_at_init = expected_rows_at_init,
        .active_experts = experts_per_token,
        .typical_active_experts = experts_per_token,
        .can_normalize = true,
        .unnormalized_reason = "gate=none gives weights that do not sum to 1 (use gate=selected)",
        .own = {"moe_biased", "MoeBiasedForCausalLM"},
        .is_own = [](const RouterSettings& s) { return s.bias_rate.has_value(); },
        .hf_experts_per_token = experts_per_token,
        .hf_compatibility = hf_compatibility,
    };
  }

 private:
  static RouterOptions options(RouterSettings& s) {
    RouterOption k = k_option(s), capacity = capacity_option(s);
    k.position = OptionPosition::kHead;
    k.help = "experts that a token requests";
    k.traits |= kChangesGates;
    k.messages[OptionMessage::kMissing] =
        "needs a whole number of experts per token, e.g. top1 or top2";
    k.messages[OptionMessage::kNote] = "k was {}; the capacity factor is kept unless given";
    capacity.fallback = "k";
    return {
        k,
        modifier("ir", s.ir,
                 "intra-GPU rectification: routes a refused token to the best expert of its own "
                 "rank"),
        modifier("fr", s.fr, "fill-in rectification: fills free slots with the (k+1)-th choices"),
        capacity,
        {.name = "gate",
         .key = "gate_norm",
         .member = choice<GateNorm, GateNorm>(
             "gate", s.gate_norm, {{"selected", GateNorm::kSelected}, {"none", GateNorm::kNone}}),
         .values = "selected or none",
         .help = "weights are a softmax over the accepting experts, or over all",
         .traits = kChangesGates,
         .messages = {{OptionMessage::kNeedsForce, "another gate rescales every MoE output"}}},
        {"st", "straight_through", &s.straight_through, "on or off",
         "straight-through gradient: the router learns from the full softmax", kTrainingOnly},
        {"lb", "lb_count",
         choice<LbCount, LbCount>("lb", s.lb_count,
                                  {{"first", LbCount::kFirst}, {"selected", LbCount::kSelected}}),
         "first or selected", "the load-balance loss counts first choices, or all k requests",
         kTrainingOnly},
        {"order", "slot_order",
         choice<SlotOrder, SlotOrder>(
             "order", s.slot_order, {{"choice", SlotOrder::kChoice}, {"score", SlotOrder::kScore}}),
         "choice or score", "slots are assigned choice by choice, or to the k requests by score"},
        {.name = "bias",
         .key = "bias_rate",
         .member = &s.bias_rate,
         .values = "a number from 0 to 1",
         .help = "adds a bias to the score of each expert where tokens choose, and moves it by "
                 "this rate per step towards equal load; 0 keeps it constant",
         .traits = kResetIfUnnamed,
         .messages = {{OptionMessage::kNote,
                       "bias was {}; a router without bias chooses by scores alone"}},
         .range = number_between(0, 1)},
    };
  }

  static RouterOption modifier(const char* name, bool& member, const char* help) {
    return {name, name, &member, "", help, 0, {}, {}, OptionPosition::kModifier};
  }

  static int64_t experts_per_token(const RouterSettings& s, int64_t) { return s.k; }

  // With fill-in every slot may be used. Without it there are at most as many rows as requests.
  static double expected_rows_at_init(const RouterSettings& s, int64_t tokens, int64_t) {
    const double requests = tokens * s.k;
    if (!s.capacity_factor) {
      return requests;
    }
    const double slots = std::ceil(*s.capacity_factor * tokens);
    return s.fr ? slots : s.ir ? requests : std::min(requests, slots);
  }

  // The qwen2_moe and mixtral of transformers compute a softmax over all experts and use the best
  // k, optionally renormalized, without capacity.
  static HfCompatibility hf_compatibility(const RouterSettings& s, int64_t experts) {
    HfCompatibility hf;
    hf.computed.push_back(fmt::format(
        "top-{} of {} experts without dropping, weights {}", s.k, experts,
        s.gate_norm == GateNorm::kSelected ? "summing to 1" : "as the softmax gives them"));
    if (s.bias_rate) {
      hf.not_computed.emplace_back(
          "bias: tokens choose by score plus a bias per expert; weights do not include it");
    }
    if (s.capacity_factor) {
      hf.not_computed.push_back(
          fmt::format("expert capacity (cf={}): stock tools drop nothing", *s.capacity_factor));
    }
    if (s.ir) {
      hf.not_computed.emplace_back(
          "+ir: dropped requests go to the best expert of the token's own rank");
    }
    if (s.fr) {
      hf.not_computed.push_back(
          fmt::format("+fr: free slots are filled with each token's choice {}", s.k + 1));
    }
    return hf;
  }
};

}  // namespace moe::route
