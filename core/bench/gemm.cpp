#include <array>

#include "core/bench/bench.h"
#include "core/bench/roof.h"
#include "core/io/checkpoint.h"

namespace moe::bench {

namespace {

model::ModelConfig gemm_config(const std::string& name) {
  if (!is_synthetic(name)) {
    const io::Checkpoint checkpoint(name);
    return model::parse_config(checkpoint.config(), checkpoint.config_name());
  }
  model::ModelConfig config = model::parse_config(Json(synthetic_config(name)), name);
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->expert_width = config.intermediate_size;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    config.moe->layers.push_back(layer);
  }
  return config;
}

}  // namespace

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
