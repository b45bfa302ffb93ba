#pragma once
// Routing: logits in, plan, weights, losses and counters out. route() runs a router's rules; what
// each family does with tensors is the second half of its descriptor (router.h has the first).

#include <string>
#include <vector>

#include "core/route/counters.h"
#include "core/route/losses.h"
#include "core/route/router.h"
#include "core/route/rule.h"

namespace moe::route {

struct Routing;

// What a family does with tensors. T tokens, E experts.
struct RouterFunctions {
  // [T, E] what tokens are compared by, of the logits [T, E].
  at::Tensor (*scores)(const at::Tensor& logits);
  std::vector<Rule> (*rules)(const RouterSettings& settings);
  // [T, E] combine weights with gradient, of logits and constant multiplicities.
  at::Tensor (*gates)(const at::Tensor& logits, const at::Tensor& count,
                      const RouterSettings& settings);
  AuxLosses (*losses)(const at::Tensor& logits, const RouteInput& input, const at::Tensor& count,
                      const RouterSettings& settings);
  // The plan of the rules in f32, made by operations of their own (kernel_plan.h); nullptr where
  // there are none.
  Plan (*kernel_plan)(const RouteInput& input, const RouterSettings& settings) = nullptr;
  // Of such a plan, by kernels too: what gates, row_weights() and losses give.
  void (*kernel_weights)(const at::Tensor& logits, const RouterSettings& settings,
                         Routing& routing) = nullptr;
};

const RouterFunctions& functions_of(const RouterSettings& settings);

// Whether a GPU plans this router, in layers of E experts, by launches that never wait for the
// host.
bool has_kernel_plan(const RouterSettings& settings, int64_t experts);

// softmax(a) [T, E].
at::Tensor softmax_scores(const at::Tensor& logits);

struct Routing {
  RouteInput input;
  Plan plan;
  at::Tensor count;    // [T, E] how often each token is served by each expert, constant
  at::Tensor combine;  // [T, E] weights with gradient: y_i = sum_j w_ij E_j(x_i)
  at::Tensor weights;  // [rows_max] the same at the plan's rows; 0 in unused rows
  AuxLosses losses;
  Counters counters;
};

// Routes `logits` [T, E] f32 (with gradient); `bias` [E] as make_input() takes it. The plan is made
// without reading the device. Settings must fit E (check_router).
Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group,
              const at::Tensor& bias = {});
// The gates and losses of `logits` under decisions that were made before: activation checkpointing
// must not send a token elsewhere because its logits came out otherwise the second time.
Routing route_again(const at::Tensor& logits, const Routing& decided,
                    const RouterSettings& settings);

}  // namespace moe::route
