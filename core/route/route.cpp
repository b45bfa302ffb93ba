#include "core/route/route.h"

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"
#include "core/route/gates.h"
#include "core/route/kernel_plan.h"
#include "core/route/routers/all.h"
#include "kernels/ops/router.h"

namespace moe::route {
namespace {

template <typename... Router>
std::vector<RouterFunctions> all_functions(std::type_identity<std::tuple<Router...>>) {
  return {Router::functions()...};
}

Plan plan_by_rules(const RouteInput& input, const RouterFunctions& functions,
                   const RouterSettings& settings) {
  Plan plan;
  for (const auto& rule : functions.rules(settings)) {
    plan = rule(input, plan);
  }
  return plan;
}

// The CPU's loops know every order of choices and any number of experts.
bool goes_by_kernels(const at::Tensor& logits, const RouterSettings& settings) {
  const bool has_any = functions_of(settings).kernel_plan != nullptr;
  return logits.scalar_type() == at::kFloat &&
         (logits.is_cpu() ? has_any : has_kernel_plan(settings, logits.size(1)));
}

// What has a gradient: all that `routing` holds besides is decided.
void weigh(Routing& routing, const at::Tensor& logits, const RouterSettings& settings) {
  const RouterFunctions& functions = functions_of(settings);
  if (goes_by_kernels(logits, settings)) {
    functions.kernel_weights(logits, settings, routing);
    return;
  }
  routing.combine = functions.gates(logits, routing.count, settings);
  routing.weights = row_weights(routing.combine, routing.count, routing.input, routing.plan);
  routing.losses = functions.losses(logits, routing.input, routing.count, settings);
  if (routing.input.wants_z_loss && settings.family->has_softmax_scores) {
    routing.losses.z = z_loss(logits, routing.input);
  }
}

}  // namespace

at::Tensor softmax_scores(const at::Tensor& logits) { return at::softmax(logits, 1); }

const RouterFunctions& functions_of(const RouterSettings& settings) {
  static const auto all = all_functions(std::type_identity<AllRouters>());  // as router_families()
  const auto index = static_cast<size_t>(settings.family - router_families().data());
  MOE_CHECK(index < all.size(), "router '{}' is not in the list", to_string(settings));
  return all[index];
}

bool has_kernel_plan(const RouterSettings& settings, int64_t experts) {
  return functions_of(settings).kernel_plan != nullptr && !settings.bias_rate &&
         experts <= kernels::kMaxRouterExperts;
}

Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group,
              const at::Tensor& bias) {
  Routing routing;
  {
    const at::NoGradGuard no_grad;
    const RouterFunctions& functions = functions_of(settings);
    routing.input = make_input(logits, functions.scores(logits), settings, group, bias);
    if (goes_by_kernels(logits, settings)) {
      routing.plan = functions.kernel_plan(routing.input, settings);
      const kernels::PlanCounts found = count_by_kernels(routing.input, routing.plan, settings);
      routing.count = found.count;
      routing.counters = counters_of(routing.input, routing.plan, settings, found.counted);
    } else {
      routing.plan = plan_by_rules(routing.input, functions, settings);
      routing.count = multiplicities(routing.input, routing.plan);
      routing.counters = count_plan(routing.input, routing.plan, settings);
    }
  }
  weigh(routing, logits, settings);
  return routing;
}

Routing route_again(const at::Tensor& logits, const Routing& decided,
                    const RouterSettings& settings) {
  Routing routing = decided;
  weigh(routing, logits, settings);
  return routing;
}

}  // namespace moe::route
