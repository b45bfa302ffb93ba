#pragma once
// The table of routers: a name, its scores, its rules, its gates, its losses. A new router is one
// file with its rule, one test and one line here. route() runs one.

#include <string>
#include <vector>

#include "core/route/counters.h"
#include "core/route/losses.h"
#include "core/route/rule.h"

namespace moe::route {

// What a family of routers is made of. T tokens, E experts.
struct RouterFamily {
  Family family;
  std::vector<std::string> examples;  // texts that the tests run over
  // [T, E] what tokens are compared by, of the logits [T, E].
  at::Tensor (*scores)(const at::Tensor& logits);
  std::vector<Rule> (*rules)(const RouterSettings& settings);
  // [T, E] combine weights with gradient, of logits and constant multiplicities.
  at::Tensor (*gates)(const at::Tensor& logits, const at::Tensor& count,
                      const RouterSettings& settings);
  AuxLosses (*losses)(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                      const RouterSettings& settings);
};

// A modifier of top-k appends its rule, in the order of the table.
struct RouterModifier {
  std::string name;
  bool RouterSettings::*is_on;
  Rule rule;
};

const std::vector<RouterFamily>& router_families();
const std::vector<RouterModifier>& router_modifiers();

struct Routing {
  RouteInput input;
  Plan plan;
  at::Tensor count;    // [T, E] how often each token is served by each expert, constant
  at::Tensor combine;  // [T, E] weights with gradient; w of SPEC section 1
  at::Tensor weights;  // [rows_max] the same at the plan's rows; 0 in unused rows
  AuxLosses losses;
  Counters counters;
};

// Routes `logits` [T, E] f32 (with gradient). The plan is made without reading the device. Settings
// must fit E (check_router).
Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group);
// The gates and losses of `logits` under decisions that were made before: activation checkpointing
// must not send a token elsewhere because its logits came out otherwise the second time.
Routing route_again(const at::Tensor& logits, const Routing& decided,
                    const RouterSettings& settings);
// route() by a family that need not stand in the table.
Routing route(const at::Tensor& logits, const RouterFamily& family, const RouterSettings& settings,
              const RoutingGroup& group);

}  // namespace moe::route
