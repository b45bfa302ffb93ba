#include "core/model/moe/layer.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <array>

#include "core/base/error.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/io/checkpoint.h"
#include "core/route/counters.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/device.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/permutation.h"

namespace moe::bench {
namespace {

using at::Tensor;

// Returns a leaf of the autograd graph with the memory of `values`.
Tensor leaf(const Tensor& values) { return values.detach().requires_grad_(true); }

class LayerBench {
 public:
  LayerBench(const LayerSettings& settings, c10::Device device)
      : settings_(settings), device_(device) {
    at::manual_seed(1);
    const int64_t experts = settings.experts, width = settings.width, inner = settings.inner;
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, device); };
    x_ = random({settings.tokens, width}).to(settings.use_bf16 ? at::kBFloat16 : at::kFloat);
    weights_ = {leaf(random({experts, width}) * 0.02),
                leaf(random({experts, 2 * inner, width}) * 0.02),
                leaf(random({experts, width, inner}) * 0.02)};
    if (settings.use_bf16 && kernels::device_traits(device).has_tensor_cores) {
      kernels::keep_bf16_working_copy(weights_.gate_up);
      kernels::keep_bf16_working_copy(weights_.down);
    }
    group_ = route::partition_tokens(settings.tokens, settings.ep_ranks.value_or(experts));
    skew_ = at::arange(experts, at::kFloat).to(device) * -settings.skew;
  }

  OrderedJson run(const route::RouterSettings& router) const {
    const route::Routing routing = route_tokens(x_, weights_.router.detach(), router);
    const route::CounterValues counters = route::read_counters({routing.counters})[0];
    const Tensor rows = x_.index_select(0, routing.plan.token.narrow(0, 0, counters.rows()));
    const auto& [flop, roof] =
        time_roof({{"up", counters.rows(), settings_.width, 2 * settings_.inner, 1},
                   {"down", counters.rows(), settings_.inner, settings_.width, 1}},
                  /*backward=*/true, settings_.repeats, roof_options(device_, settings_.use_bf16));
    const Timing products = time_products(routing, counters.tokens_per_expert, rows);
    OrderedJson json = {{"router", route::to_string(router)},
                        {"rows", counters.rows()},
                        {"dropped_requests", counters.dropped_requests},
                        {"fr_filled", counters.fr_filled},
                        {"ir_tokens", counters.ir_tokens},
                        {"padding", router.capacity_factor ? counters.padding : 0},
                        {"load_max_over_mean", counters.load_max_over_mean()},
                        {"flop", flop}};
    json["roof"] = to_json(roof, flop, roof);
    json["products"] = to_json(products, flop, roof);
    if (settings_.times_layer) {
      json["layer"] = to_json(time([&] { run_layer(router); }), flop, roof);
    }
    const Timing routing_time = time([&] { run_routing(router); });
    json["routing"] = to_json(routing_time);
    json["routing_share_of_products"] = routing_time.median_s / products.median_s;
    if (settings_.times_layer) {
      json["parts_ms"] = time_parts([&] { run_layer(router); }, device_);
    }
    json["peak_bytes"] = peak_bytes(device_);
    return json;
  }

 private:
  Timing time(const std::function<void()>& work) const {
    return time_calls(settings_.repeats, work, device_);
  }

  route::Routing route_tokens(const Tensor& x, const Tensor& weight,
                              const route::RouterSettings& router) const {
    RECORD_USER_SCOPE("routing");
    return route::route(kernels::linear_in_f32(x, weight) + skew_, router, group_);
  }

  // Returns the sum of all auxiliary losses, so that their gradients are timed too.
  static Tensor auxiliary_loss(const route::AuxLosses& losses) {
    Tensor sum = at::zeros({});
    for (const auto member : route::kAllLosses) {
      if (const Tensor& loss = losses.*member; loss.defined()) {
        sum = sum + 0.01 * loss;
      }
    }
    return sum;
  }

  void clear_gradients() const {
    for (const Tensor& weight : {weights_.router, weights_.gate_up, weights_.down}) {
      weight.mutable_grad() = Tensor();
    }
  }

  void run_routing(const route::RouterSettings& router) const {
    const route::Routing routing = route_tokens(leaf(x_), leaf(weights_.router), router);
    (routing.weights.sum() + auxiliary_loss(routing.losses)).backward();
    route::read_counters({routing.counters});
  }

  void run_layer(const route::RouterSettings& router) const {
    const Tensor x = leaf(x_);
    const route::Routing routing = route_tokens(x, weights_.router, router);
    const Tensor y = model::run_local_experts(x, routing, weights_.experts(), 1.0);
    (y.sum() + auxiliary_loss(routing.losses)).backward();
    clear_gradients();
    route::read_counters({routing.counters});
  }

  // Times the expert products. With a capacity on a GPU, the rows per expert stay on the device.
  Timing time_products(const route::Routing& routing, const std::vector<int64_t>& tokens_per_expert,
                       const Tensor& rows) const {
    const auto time_with = [&](const Tensor& inputs, const auto& counts) {
      return time([&] {
        kernels::grouped_swiglu(leaf(inputs), weights_.gate_up, weights_.down, counts)
            .sum()
            .backward();
        clear_gradients();
      });
    };
    if (!kernels::device_traits(device_).has_streams || routing.input.is_dropless) {
      return time_with(rows, tokens_per_expert);
    }
    const route::Plan& plan = routing.plan;
    const kernels::SegmentedRows segments =
        kernels::segment_rows(plan.token, plan.expert, plan.choice, plan.rows, settings_.tokens,
                              model::max_choices(routing));
    return time_with(kernels::permute(x_, segments.permutation), segments.ends);
  }

  LayerSettings settings_;
  c10::Device device_;
  Tensor x_;  // [T, D]
  model::MoeWeights weights_;
  route::RoutingGroup group_;
  Tensor skew_;  // [E]
};

model::ModelConfig gemm_config(const std::string& name) {
  if (!is_synthetic(name)) {
    const io::Checkpoint checkpoint(name);
    return model::parse_config(checkpoint.config(), checkpoint.config_name());
  }
  model::ModelConfig config = model::parse_config(Json(synthetic_config(name)), name);
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->expert_width = config.intermediate_size;
  config.moe->layers = model::parse_layers("all", config.layers);
  return config;
}

}  // namespace

OrderedJson bench_layer(const LayerSettings& settings, c10::Device device) {
  const int64_t ranks = settings.ep_ranks.value_or(settings.experts);
  USER_ERROR_IF(settings.experts % ranks != 0,
                "--ep-ranks {} does not divide the {} experts; use a divisor", ranks,
                settings.experts);
  std::vector<route::RouterSettings> routers;
  for (const auto& text : settings.routers) {
    routers.push_back(route::requested_router({text, settings.cf, {}}, {}));
    route::check_router(routers.back(), settings.experts);
  }
  const LayerBench layer(settings, device);
  OrderedJson json = {{"layers", OrderedJson::array()}};
  for (const auto& router : routers) {
    json["layers"].push_back(layer.run(router));
  }
  return json;
}

OrderedJson bench_gemm(const GemmSettings& settings, c10::Device device) {
  constexpr std::array kSuffixes = {"", " dx", " dw"};  // of kProductForms
  const auto options =
      at::TensorOptions(device).dtype(settings.use_bf16 ? at::kBFloat16 : at::kFloat);
  const int64_t tokens = settings.tokens;
  OrderedJson json = {{"products", OrderedJson::object()}};
  double flop = 0, roof_s = 0;
  for (const Product& product :
       forward_products(gemm_config(settings.model), {tokens, 2 * tokens, tokens})) {
    for (const ProductForm form : kProductForms) {
      const auto seconds = [&](bool use_own_gemm) {
        return time_product(product, form, use_own_gemm, settings.repeats, options).best_s;
      };
      const double library_s = seconds(false), own_s = seconds(true);
      json["products"][product.name + kSuffixes[static_cast<size_t>(form)]] = {
          {"m", product.m},
          {"k", product.k},
          {"n", product.n},
          {"library_gflops", product.flop() / library_s / 1e9},
          {"gflops", product.flop() / own_s / 1e9},
          {"share", library_s / own_s}};
      flop += product.count * product.flop();
      roof_s += product.count * library_s;
    }
  }
  json["roof_gflops"] = flop / roof_s / 1e9;
  return json;
}

}  // namespace moe::bench
