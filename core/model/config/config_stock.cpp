// Folders made by other tools: windows and shared experts, and the mixtures of Mixtral, Qwen2-MoE
// and Qwen3-MoE. Their config.json says less than ours: no capacity, no logical ranks.

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 18;  // over all layers; each is three tensors by name
constexpr double kDefaultAuxLossCoef = 0.001;

constexpr int64_t kMaxWindowLayers = 28;  // where the key is absent

// Whether a key must be true for the window to count: Mistral has no such key.
bool is_window_used(const Json& json, const Architecture& architecture, const std::string& where) {
  return architecture.windowed_layers == WindowedLayers::kAll ||
         get_bool(json, "use_sliding_window", where, false);
}

// The tokens that a windowed layer sees; none where all layers see all.
std::optional<int64_t> read_window(const Json& json, const Architecture& architecture,
                                   const std::string& where) {
  const bool absent = !json.contains("sliding_window");
  const bool has_window =
      absent ? architecture.window_if_absent > 0 : !json.at("sliding_window").is_null();
  if (!has_window || !is_window_used(json, architecture, where)) {
    return std::nullopt;
  }
  return get_int(json, "sliding_window", where, architecture.window_if_absent);
}

// As layer_types names them, else by the rule of the architecture.
bool has_windowed_layer(const Json& json, const Architecture& architecture,
                        const std::string& where, int64_t layers) {
  if (architecture.reads_layer_types && given(json, "layer_types")) {
    const Json& types = json.at("layer_types");
    return std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  }
  const int64_t index = get_int(json, "max_window_layers", where, kMaxWindowLayers);
  switch (architecture.windowed_layers) {
    case WindowedLayers::kFromIndex:
      return index < layers;
    case WindowedLayers::kEvenBefore:
      return index > 0;
    default:
      return true;
  }
}

// A windowed layer needs a window; how long it is, read_short_window() reads.
void refuse_layer_types(const Json& json, const Architecture& architecture,
                        const std::string& where) {
  if (!given(json, "layer_types")) {
    return;
  }
  const bool has_window = read_window(json, architecture, where).has_value();
  const Json& types = json.at("layer_types");
  const bool known =
      types.is_array() && std::all_of(types.begin(), types.end(), [&](const Json& t) {
        return t == "full_attention" || (has_window && t == "sliding_attention");
      });
  if (!known) {
    throw UserError("{}: layer_types names attention other than full_attention; not supported",
                    where);
  }
}

}  // namespace

void refuse_stock_extras(const Json& json, const Architecture& architecture,
                         const std::string& where) {
  if (architecture.reads_layer_types) {
    refuse_layer_types(json, architecture, where);
  }
}

int64_t read_shared_expert(const Json& json, const Architecture& architecture,
                           const std::string& where, bool qk_norm) {
  if (!architecture.may_have_shared_experts) {
    return 0;
  }
  const char* const key = "shared_expert_intermediate_size";
  const int64_t width = get_int(json, key, where, architecture.shared_expert_width);
  if (width != 0 && qk_norm) {
    throw UserError("{}: {} is {} and use_qk_norm is true, which no stock mixture has: set it to 0",
                    where, key, width);
  }
  if (width < 0 || width > kMaxSize) {
    throw UserError("{}: {} is {}; it must be between 0, which is none, and {}", where, key, width,
                    kMaxSize);
  }
  return width;
}

int64_t read_short_window(const Json& json, const Architecture& architecture,
                          const std::string& where, const ModelConfig& config) {
  if (architecture.windowed_layers == WindowedLayers::kNone) {
    return 0;
  }
  const std::optional<int64_t> window = read_window(json, architecture, where);
  if (!window || *window >= config.max_position_embeddings ||
      !has_windowed_layer(json, architecture, where, config.layers)) {
    return 0;
  }
  if (*window < 1) {
    throw UserError("{}: sliding_window is {}; it must be at least 1, or null for none", where,
                    *window);
  }
  return *window;
}

int64_t read_experts(const Json& json, const Architecture& architecture, const std::string& where,
                     size_t moe_layers) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  const bool has_both = architecture.form == FolderForm::kQwen3Moe && given(json, "num_experts") &&
                        given(json, "num_local_experts");
  if (has_both &&
      get_int(json, "num_experts", where) != get_int(json, "num_local_experts", where)) {
    throw UserError("{}: num_experts is {}, num_local_experts is {}; make them equal", where,
                    get_int(json, "num_experts", where), get_int(json, "num_local_experts", where));
  }
  // transformers before version 5 writes num_experts for a Qwen3-MoE, later ones num_local_experts.
  const bool is_local = is_mixtral || (architecture.form == FolderForm::kQwen3Moe &&
                                       given(json, "num_local_experts"));
  const std::string key = is_local ? "num_local_experts" : "num_experts";
  const int64_t fallback = architecture.experts;
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

MoeConfig read_stock_moe(const Json& json, const Architecture& architecture,
                         const std::string& where, const ModelConfig& config) {
  const bool mixtral = architecture.form == FolderForm::kMixtral;
  MoeConfig out;
  out.form = architecture.form;
  if (mixtral) {
    out.layers.resize(static_cast<size_t>(config.layers));
    std::iota(out.layers.begin(), out.layers.end(), 0);
  } else {
    out.layers = stock_moe_layers(json, where, config.layers);
  }
  if (out.layers.empty()) {
    throw UserError(
        "{}: no layer is a mixture by mlp_only_layers and decoder_sparse_step; a dense folder has "
        "the model_type of a dense model, such as llama or qwen3",
        where);
  }
  out.experts = read_experts(json, architecture, where, out.layers.size());
  out.expert_width =
      mixtral ? config.intermediate_size
              : read_size_or(json, "moe_intermediate_size", where, architecture.expert_width);
  out.ep_ranks = out.experts;
  out.router.k = read_size_or(json, "num_experts_per_tok", where, architecture.experts_per_token);
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
