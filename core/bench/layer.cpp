#include "core/bench/layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "core/base/error.h"
#include "core/bench/environment.h"
#include "core/model/llama/timeline.h"
#include "core/model/moe/layer.h"
#include "core/model/moe/token_dispatcher.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"

namespace moe::bench {

using at::Tensor;

namespace {

struct LayerInputs {
  Tensor x;  // [T, D]
  model::MoeWeights weights;
  model::MoeWeights trained;  // the same in one place from step to step, with gradients
  route::RoutingGroup group;
  Tensor skew;  // [E]
};

Tensor leaf(const Tensor& values) { return values.detach().requires_grad_(true); }

LayerInputs make_inputs(const LayerSettings& settings) {
  at::manual_seed(1);
  const int64_t experts = settings.experts;
  const auto on_device = [&](const Tensor& tensor) { return tensor.to(settings.device); };
  const Tensor x = on_device(at::randn({settings.tokens, settings.width}));
  const model::MoeWeights weights = {
      on_device(at::randn({experts, settings.width}) * 0.02),
      on_device(at::randn({experts, 2 * settings.inner, settings.width}) * 0.02),
      on_device(at::randn({experts, settings.width, settings.inner}) * 0.02)};
  const model::MoeWeights trained = {leaf(weights.router), leaf(weights.gate_up),
                                     leaf(weights.down)};
  if (settings.bf16 && settings.device.is_cuda()) {
    kernels::keep_bf16_working_copy(trained.gate_up);
    kernels::keep_bf16_working_copy(trained.down);
  }
  return {x.to(settings.bf16 ? at::kBFloat16 : at::kFloat), weights, trained,
          route::spread_over_ranks(settings.tokens,
                                   settings.ep_ranks == 0 ? experts : settings.ep_ranks),
          on_device(at::arange(experts, at::kFloat) * -settings.skew)};
}

void clear_gradients(const model::MoeWeights& weights) {
  for (const Tensor& weight : {weights.router, weights.gate_up, weights.down}) {
    weight.mutable_grad() = Tensor();
  }
}

route::Routing route_once(const LayerInputs& inputs, const Tensor& x, const Tensor& router_weight,
                          const route::RouterSettings& router) {
  RECORD_USER_SCOPE("routing");
  return route::route(model::router_logits(x, router_weight) + inputs.skew, router, inputs.group);
}

// Every auxiliary loss with a weight, so that its gradient is part of the cost.
Tensor auxiliary(const route::AuxLosses& losses) {
  Tensor sum = at::zeros({});
  for (const auto member : route::kAllLosses) {
    if (const Tensor& loss = losses.*member; loss.defined()) {
      sum = sum + 0.01 * loss;
    }
  }
  return sum;
}

void run_routing(const LayerInputs& inputs, const route::RouterSettings& router) {
  const Tensor x = leaf(inputs.x), weight = leaf(inputs.weights.router);
  const auto routing = route_once(inputs, x, weight, router);
  (routing.weights.sum() + auxiliary(routing.losses)).backward();
  route::read_counters({routing.counters});
}

void run_layer(const LayerInputs& inputs, const route::RouterSettings& router) {
  const Tensor x = leaf(inputs.x);
  const auto routing = route_once(inputs, x, inputs.trained.router, router);
  const Tensor y = model::local_dispatcher()->run(x, routing, inputs.trained.experts(), 1.0);
  (y.sum() + auxiliary(routing.losses)).backward();
  clear_gradients(inputs.trained);
  route::read_counters({routing.counters});
}

void run_products(const LayerInputs& inputs, const Tensor& rows,
                  const std::vector<int64_t>& tokens_per_expert) {
  const auto& weights = inputs.trained;
  kernels::grouped_swiglu(leaf(rows), weights.gate_up, weights.down, tokens_per_expert)
      .sum()
      .backward();
  clear_gradients(weights);
}

// The same where tokens_per_expert stays on the device, as the layer runs them on a GPU.
void run_products_on_device(const LayerInputs& inputs, const Tensor& rows, const Tensor& ends) {
  const auto& weights = inputs.trained;
  kernels::grouped_swiglu(leaf(rows), weights.gate_up, weights.down, ends).sum().backward();
  clear_gradients(weights);
}

Timing time_products(const LayerSettings& settings, const LayerInputs& inputs,
                     const route::Routing& routing, const std::vector<int64_t>& tokens_per_expert,
                     const Tensor& gathered) {
  if (settings.device.is_cpu() || routing.input.dropless) {
    return time_of(
        settings.repeats, [&] { run_products(inputs, gathered, tokens_per_expert); },
        settings.device);
  }
  const route::Plan& plan = routing.plan;
  const kernels::SegmentedRows segmented = kernels::segment_rows(
      plan.token, plan.expert, plan.choice, plan.rows, settings.tokens, model::choices_of(routing));
  const Tensor rows = kernels::permute(inputs.x, segmented.permutation);
  return time_of(
      settings.repeats, [&] { run_products_on_device(inputs, rows, segmented.ends); },
      settings.device);
}

// [R, D] x [D, 2F] and [R, F] x [F, D], and the two products of each one's gradient.
void run_roof(const Tensor& gate_up, const Tensor& down, const Tensor& rows) {
  const Tensor hidden = at::mm(rows, gate_up.t());           // [R, 2F]
  const Tensor inner = hidden.narrow(1, 0, down.size(1));    // [R, F]
  const Tensor out = at::mm(inner, down.t());                // [R, D]
  const Tensor inner_gradient = at::mm(out, down);           // [R, F]
  const Tensor down_gradient = at::mm(out.t(), inner);       // [D, F]
  const Tensor rows_gradient = at::mm(hidden, gate_up);      // [R, D]
  const Tensor gate_up_gradient = at::mm(hidden.t(), rows);  // [2F, D]
}

}  // namespace

LayerReport bench_layer(const LayerSettings& settings, const route::RouterSettings& router) {
  const LayerInputs inputs = make_inputs(settings);
  LayerReport report;
  report.router = route::to_string(router);
  const auto routing = route_once(inputs, inputs.x, inputs.weights.router, router);
  report.counted = route::read_counters({routing.counters})[0];
  if (!router.capacity_factor) {
    report.counted.padding = 0;  // no slot beyond the rows that there are
  }
  const int64_t rows = report.counted.rows();
  report.flop = 18.0 * static_cast<double>(rows) * static_cast<double>(settings.width) *
                static_cast<double>(settings.inner);
  const Tensor gathered = inputs.x.index_select(0, routing.plan.token.narrow(0, 0, rows));
  const auto time = [&](const std::function<void()>& work) {
    return time_of(settings.repeats, work, settings.device);
  };
  const auto type = gathered.scalar_type();
  const Tensor operands = kernels::operand(gathered, type);
  const Tensor gate_up = kernels::operand(inputs.weights.gate_up[0], type);
  const Tensor down = kernels::operand(inputs.weights.down[0], type);
  report.roof = time([&] { run_roof(gate_up, down, operands); });
  report.products =
      time_products(settings, inputs, routing, report.counted.tokens_per_expert, gathered);
  report.routing = time([&] { run_routing(inputs, router); });
  report.counting =
      time([&] { route::read_counters({route::count_plan(routing.input, routing.plan, router)}); });
  if (settings.times_layer) {
    report.layer = time([&] { run_layer(inputs, router); });
    report.parts_s = model::part_seconds([&] { run_layer(inputs, router); }, settings.device);
  }
  report.peak_bytes = process_use().peak_bytes;
  return report;
}

OrderedJson to_json(const LayerSettings& settings) {
  OrderedJson json = {{"tokens", settings.tokens},
                      {"width", settings.width},
                      {"inner", settings.inner},
                      {"experts", settings.experts},
                      {"ep_ranks", settings.ep_ranks == 0 ? settings.experts : settings.ep_ranks},
                      {"skew", settings.skew},
                      {"repeats", settings.repeats}};
  if (settings.bf16) {
    json["precision"] = "bf16";
  }
  return json;
}

OrderedJson to_json(const LayerReport& report) {
  OrderedJson json = {{"router", report.router},
                      {"flop", report.flop},
                      {"roof", to_json(report.roof)},
                      {"products", to_json(report.products)},
                      {"routing", to_json(report.routing)},
                      {"counting", to_json(report.counting)}};
  if (report.layer.median_s > 0) {
    json["layer"] = to_json(report.layer);
    for (const auto& [name, seconds] : report.parts_s) {
      json["parts_ms"][name] = seconds * 1e3;
    }
  }
  json["rows"] = report.counted.rows();
  json["dropped_requests"] = report.counted.dropped_requests;
  json["fr_filled"] = report.counted.fr_filled;
  json["ir_tokens"] = report.counted.ir_tokens;
  json["padding"] = report.counted.padding;
  json["load_max_over_mean"] = report.counted.load_max_over_mean();
  json["peak_bytes"] = report.peak_bytes;
  return json;
}

}  // namespace moe::bench
