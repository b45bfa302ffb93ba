#include "core/upcycle/calibrate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/error.h"
#include "core/model/llama/llama.h"
#include "core/route/plan.h"
#include "core/route/route.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

using at::Tensor;

Tensor read_router(const io::Checkpoint& child, int64_t layer) {
  const ExpertMatrix matrix = expert_slice(child, layer_prefix(layer) + "mlp.gate.weight", 0, 1);
  const Tensor router = at::empty(matrix.info.shape);
  read_values(matrix, 0, {router.data_ptr<float>(), static_cast<size_t>(router.numel())});
  return router;
}

// Routes `input` [T, D] by `router` [E, D] and adds its gates and loads to `gates`.
void measure_layer(const Tensor& input, const Tensor& router, const MoeConfig& moe,
                   LayerGates& gates) {
  const auto group = route::partition_tokens(input.size(0), moe.ep_ranks);
  const route::Routing routing = route::route(at::mm(input, router.t()), moe.router, group);
  gates.gate_sum += routing.combine.sum(at::kDouble).item<double>();
  const std::vector<int64_t> rows = route::to_host(routing.plan.rows);  // [E]
  gates.load.resize(rows.size());
  for (size_t expert = 0; expert < rows.size(); ++expert) {
    gates.load[expert] += rows[expert];
  }
}

OrderedJson to_json(const GateMeasure& measure) {
  OrderedJson json = {{"text", measure.text},
                      {"tokens", measure.tokens},
                      {"mean_gate_sum", measure.mean_gate_sum()}};
  const auto tokens = static_cast<double>(std::max<int64_t>(1, measure.tokens));
  json["layers"] = OrderedJson::array();
  for (const auto& layer : measure.layers) {
    json["layers"].push_back(
        {{"layer", layer.layer}, {"mean_gate_sum", layer.gate_sum / tokens}, {"load", layer.load}});
  }
  return json;
}

}  // namespace

double GateMeasure::mean_gate_sum() const {
  double sum = 0;
  for (const auto& layer : layers) {
    sum += layer.gate_sum;
  }
  const auto places = tokens * std::ssize(layers);
  return places > 0 ? sum / places : 0;
}

GateMeasure measure_gates(const io::Checkpoint& parent, const io::Checkpoint& child,
                          const VerifyText& text) {
  const at::NoGradGuard no_gradients;
  const ModelConfig config = parse_config(child.config(), child.config_name());
  MOE_CHECK(config.moe, "{} is dense", child.folder().string());
  const Llama dense = Llama::load(parent, {}, text.device, Storage::kStored);
  GateMeasure measure{text.name, std::ssize(text.ids), {}};
  std::map<int64_t, Tensor> routers;
  for (const int64_t layer : config.moe->layers) {
    routers[layer] = read_router(child, layer).to(text.device);
    measure.layers.push_back({layer, 0, {}});
  }
  const auto on_input = [&](int64_t layer, const Tensor& input) {
    if (const auto gates = std::ranges::find(measure.layers, layer, &LayerGates::layer);
        gates != measure.layers.end()) {
      measure_layer(input, routers.at(layer), *config.moe, *gates);
    }
  };
  for (const auto& ids : verify_windows(text, dense.config())) {
    const Packed tokens{at::tensor(ids, at::kLong), {std::ssize(ids)}};
    dense.forward(tokens, dense.default_routing(), on_input);
  }
  return measure;
}

double compute_gate_scale(const GateMeasure& measure) {
  const double mean = measure.mean_gate_sum();
  USER_ERROR_IF(!(mean > 0) || !std::isfinite(1 / mean),
                "--gate-scale auto: the gates of all {} tokens of {} sum to {}, no factor scales "
                "that to 1; try another --seed or --calibration text",
                measure.tokens, measure.text, mean);
  return 1 / mean;
}

std::vector<std::string> describe_dead_experts(const GateMeasure& measure) {
  std::vector<std::string> sentences;
  const auto where = fmt::format("any of the {} tokens of {}", measure.tokens, measure.text);
  for (const auto& layer : measure.layers) {
    const std::vector<size_t> dead = indices_of_zeros(layer.load);
    if (dead.size() == layer.load.size()) {
      sentences.push_back(
          fmt::format("layer {} starts dead: no expert has a positive logit on {}; its router gets "
                      "no gradient there; try another --seed",
                      layer.layer, where));
    } else if (!dead.empty()) {
      sentences.push_back(
          fmt::format("layer {}: {} of {} experts start dead, without a positive logit on {}: {}; "
                      "try another --seed",
                      layer.layer, dead.size(), layer.load.size(), where, fmt::join(dead, ", ")));
    }
  }
  return sentences;
}

Calibration calibrate(const io::Checkpoint& parent, const std::filesystem::path& staged,
                      const UpcycleSettings& settings, const VerifyText& text) {
  const bool is_auto = !settings.gate_scale;
  Calibration result{settings.gate_scale.value_or(1.0), {}, {}};
  if (is_auto && route::weights_sum_to_one(settings.router)) {
    result.report["words"] = fmt::format("the weights of {} sum to 1 already: gate_scale is 1",
                                         route::to_string(settings.router));
    return result;
  }
  const GateMeasure measure = measure_gates(parent, io::Checkpoint(staged), text);
  result.report = to_json(measure);
  if (is_auto) {
    result.gate_scale = compute_gate_scale(measure);
    result.report["words"] = fmt::format(
        "the weights of a token sum to {:.4g} on average over {} tokens of {}: gate_scale "
        "is {:.6g}",
        measure.mean_gate_sum(), measure.tokens, measure.text, result.gate_scale);
  }
  if (settings.router.family->can_leave_experts_dead) {
    result.warnings = describe_dead_experts(measure);
  }
  return result;
}

}  // namespace moe::model
