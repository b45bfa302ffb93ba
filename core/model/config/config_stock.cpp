// Mixtral and Qwen2-MoE folders made by other tools. Their config.json says less than ours: no
// capacity, no logical ranks; what it leaves out means what transformers takes (5.23,
// configuration_mixtral.py and configuration_qwen2_moe.py), which differs from LLaMA's.

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 18;  // over all layers; each is three tensors by name
constexpr double kDefaultAuxLossCoef = 0.001;

constexpr TypeDefaults kLlama{};
constexpr TypeDefaults kMixtral{.kv_heads = 8,
                                .max_position_embeddings = 131072,
                                .rms_norm_eps = 1e-5,
                                .rope_theta = 1e6,
                                .experts = 8,
                                .experts_per_token = 2};
constexpr TypeDefaults kQwen2Moe{.kv_heads = 16,
                                 .max_position_embeddings = 32768,
                                 .qkv_bias = true,
                                 .experts = 60,
                                 .experts_per_token = 4,
                                 .expert_width = 1408,
                                 .shared_expert_width = 5632};

// A window at least as long as the context is none.
void refuse_window(const Json& json, const std::string& where, int64_t max_positions) {
  if (!given(json, "sliding_window")) {
    return;
  }
  const int64_t window = get_int(json, "sliding_window", where);
  if (window < max_positions) {
    throw UserError(
        "{}: sliding_window is {}, shorter than the {} of max_position_embeddings; windowed "
        "attention is not supported: set max_position_embeddings to {}, or sliding_window to null "
        "if the model was trained without one",
        where, window, max_positions, window);
  }
}

void refuse_window_layers(const Json& json, const std::string& where) {
  if (!given(json, "layer_types")) {
    return;
  }
  const Json& types = json.at("layer_types");
  const bool full = types.is_array() && std::all_of(types.begin(), types.end(), [](const Json& t) {
                      return t == "full_attention";
                    });
  if (!full) {
    throw UserError("{}: layer_types names attention other than full_attention; not supported",
                    where);
  }
}

}  // namespace

const TypeDefaults& type_defaults(const std::string& type) {
  return type == "mixtral" ? kMixtral : type == "qwen2_moe" ? kQwen2Moe : kLlama;
}

void refuse_stock_extras(const Json& json, const std::string& type, const std::string& where,
                         int64_t max_positions) {
  if (type == "mixtral") {
    refuse_window(json, where, max_positions);
    return;
  }
  refuse_window_layers(json, where);
  const bool absent = !given(json, "shared_expert_intermediate_size");
  const int64_t shared = get_int(json, "shared_expert_intermediate_size", where,
                                 type_defaults(type).shared_expert_width);
  if (shared != 0) {
    throw UserError(
        "{}: shared_expert_intermediate_size is {}; shared experts are not supported, "
        "it must be 0",
        where, absent ? fmt::format("absent, which means {}", shared) : fmt::format("{}", shared));
  }
}

int64_t read_experts(const Json& json, const std::string& type, const std::string& where,
                     size_t moe_layers) {
  const std::string key = type == "mixtral" ? "num_local_experts" : "num_experts";
  const int64_t fallback = type_defaults(type).experts;
  const int64_t experts =
      fallback > 0 ? read_size_or(json, key, where, fallback) : read_size(json, key, where);
  if (experts > kMaxExperts / static_cast<int64_t>(moe_layers)) {
    throw UserError("{}: {} experts in {} layers are too many; at most {} in all", where, experts,
                    moe_layers, kMaxExperts);
  }
  return experts;
}

std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers) {
  std::vector<int64_t> dense = given(json, "mlp_only_layers")
                                   ? get_ints(json, "mlp_only_layers", where)
                                   : std::vector<int64_t>();
  std::sort(dense.begin(), dense.end());
  const int64_t step = bounded(get_int(json, "decoder_sparse_step", where, 1),
                               "decoder_sparse_step", where, kMaxSize);
  std::vector<int64_t> list;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if ((layer + 1) % step == 0 && !std::binary_search(dense.begin(), dense.end(), layer)) {
      list.push_back(layer);
    }
  }
  return list;
}

void check_stored_router(const MoeConfig& moe, const std::string& where) {
  try {
    route::check_router(moe.router, moe.experts);
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
}

MoeConfig read_stock_moe(const Json& json, const std::string& type, const std::string& where,
                         const ModelConfig& config) {
  const bool mixtral = type == "mixtral";
  const TypeDefaults& defaults = type_defaults(type);
  MoeConfig out;
  out.form = mixtral ? FolderForm::kMixtral : FolderForm::kQwen2Moe;
  if (mixtral) {
    out.layers.resize(static_cast<size_t>(config.layers));
    std::iota(out.layers.begin(), out.layers.end(), 0);
  } else {
    out.layers = stock_moe_layers(json, where, config.layers);
  }
  if (out.layers.empty()) {
    throw UserError(
        "{}: no layer is a mixture by mlp_only_layers and decoder_sparse_step; a dense folder must "
        "be a LLaMA",
        where);
  }
  out.experts = read_experts(json, type, where, out.layers.size());
  out.expert_width =
      mixtral ? config.intermediate_size
              : read_size_or(json, "moe_intermediate_size", where, defaults.expert_width);
  out.ep_ranks = out.experts;
  out.router.k = read_size_or(json, "num_experts_per_tok", where, defaults.experts_per_token);
  out.router.capacity_factor = std::nullopt;
  out.router.gate_norm = mixtral || get_bool(json, "norm_topk_prob", where, false)
                             ? route::GateNorm::kSelected
                             : route::GateNorm::kNone;
  out.router.straight_through = out.router.gate_norm == route::GateNorm::kNone;
  out.router.lb_count = route::LbCount::kSelected;
  check_stored_router(out, where);
  out.lb_coef = finite(get_double(json, "router_aux_loss_coef", where, kDefaultAuxLossCoef),
                       "router_aux_loss_coef", where, true);
  out.router_std = config.initializer_range;
  return out;
}

}  // namespace moe::model
