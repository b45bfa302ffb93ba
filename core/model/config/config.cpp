// Reads config.json. A key that would change the function of the weights and is not supported is an
// error that names it, never ignored. Sizes are bounded so that no product of them overflows.

#include "core/model/config/config.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/model/config/architecture.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 31;  // of one dimension
constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr int64_t kMaxExperts = int64_t{1} << 18;  // of all layers; each has three tensors
constexpr double kMaxParameters = 0x1p50;  // so that byte counts and their sums stay far below 2^63

// Returns `value`. Throws UserError unless it is in [1, max].
int64_t bounded(int64_t value, const std::string& key, const std::string& where,
                int64_t max = kMaxSize) {
  USER_ERROR_IF(value < 1 || value > max, "{}: {} is {}; it must be between 1 and {}", where, key,
                value, max);
  return value;
}

int64_t read_size(const Json& json, const std::string& key, const std::string& where,
                  std::optional<int64_t> fallback = {}, int64_t max = kMaxSize) {
  return bounded(get_int(json, key, where, fallback), key, where, max);
}

// Returns `value`. Throws UserError unless it is finite and positive, or zero with `allow_zero`.
double finite(double value, const std::string& key, const std::string& where, bool allow_zero) {
  USER_ERROR_IF(!std::isfinite(value) || value < 0 || (value == 0 && !allow_zero),
                "{}: {} is {}; it must be {} number", where, key, value,
                allow_zero ? "zero or a positive" : "a positive");
  return value;
}

double read_number(const Json& json, const std::string& key, const std::string& where,
                   std::optional<double> fallback, bool allow_zero) {
  return finite(get_double(json, key, where, fallback), key, where, allow_zero);
}

const Json& get_object(const Json& json, const std::string& key, const std::string& where) {
  USER_ERROR_IF(!json.at(key).is_object(), "{}: {} must be an object, not {}", where, key,
                json.at(key).type_name());
  return json.at(key);
}

RopeType read_rope_type(const Json& json, const std::string& where) {
  const std::string name =
      get_string(json, "rope_type", where, get_string(json, "type", where, "default"));
  const auto found = std::find(kRopeTypeNames.begin(), kRopeTypeNames.end(), name);
  USER_ERROR_IF(
      found == kRopeTypeNames.end(),
      "{}: rope type '{}' is not supported; known are default, linear, dynamic and llama3", where,
      name);
  return static_cast<RopeType>(found - kRopeTypeNames.begin());
}

// Reads one dictionary, rope_scaling or rope_parameters, without rope_theta.
RopeConfig read_rope_dictionary(const Json& json, const std::string& where) {
  for (const auto& [key, value] : json.items()) {
    USER_ERROR_IF(value.is_object(),
                  "{}: '{}' gives a rope of its own to some layers, which is not supported", where,
                  key);
  }
  USER_ERROR_IF(get_double(json, "partial_rotary_factor", where, 1.0) != 1.0,
                "{}: partial_rotary_factor other than 1 is not supported", where);
  RopeConfig rope;
  rope.type = read_rope_type(json, where);
  rope.original_max_position_embeddings =
      get_int(json, "original_max_position_embeddings", where, 0);
  USER_ERROR_IF(
      rope.original_max_position_embeddings < 0 || rope.original_max_position_embeddings > kMaxSize,
      "{}: original_max_position_embeddings is {}; it must be between 0 and {}", where,
      rope.original_max_position_embeddings, kMaxSize);
  if (rope.type == RopeType::kDefault) {
    return rope;
  }
  rope.factor = get_double(json, "factor", where);
  USER_ERROR_IF(!std::isfinite(rope.factor) || rope.factor < 1,
                "{}: the rope factor is {}; it must be at least 1", where, rope.factor);
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = read_number(json, "low_freq_factor", where, {}, false);
    rope.high_freq_factor = read_number(json, "high_freq_factor", where, {}, false);
    USER_ERROR_IF(rope.high_freq_factor <= rope.low_freq_factor,
                  "{}: high_freq_factor {} must be above low_freq_factor {}", where,
                  rope.high_freq_factor, rope.low_freq_factor);
    USER_ERROR_IF(rope.original_max_position_embeddings == 0,
                  "{}: llama3 rope needs original_max_position_embeddings", where);
  }
  return rope;
}

// Reads rope_theta, rope_scaling and rope_parameters. config_json() writes both dictionaries, and
// rope_theta may be at the top level and in both. Throws UserError if values contradict each other.
RopeConfig read_rope(const Json& json, const std::string& where, double default_theta) {
  const std::string contradiction =
      "rope_theta, rope_scaling and rope_parameters say different things; remove the wrong ones";
  RopeConfig rope;
  std::optional<double> theta;
  const auto read_theta = [&](const Json& object, const std::string& object_name) {
    if (has_value(object, "rope_theta")) {
      const double value = get_double(object, "rope_theta", object_name);
      USER_ERROR_IF(theta && *theta != value, "{}: {}", where, contradiction);
      theta = value;
    }
  };
  read_theta(json, where);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (has_value(json, key)) {
      const Json& dictionary = get_object(json, key, where);
      const RopeConfig found = read_rope_dictionary(dictionary, where + ": " + key);
      USER_ERROR_IF(has_value(json, "rope_scaling") && &dictionary != &json.at("rope_scaling") &&
                        rope != found,
                    "{}: {}", where, contradiction);
      rope = found;
      read_theta(dictionary, where + ": " + key);
    }
  }
  rope.theta = finite(theta.value_or(default_theta), "rope_theta", where, false);
  return rope;
}

// Returns true if the model has an optional part. `key` decides for Presence::kByKey.
bool has_part(Presence presence, const Json& json, const std::string& key, const std::string& where,
              bool if_absent) {
  return presence == Presence::kAlways ||
         (presence == Presence::kByKey && get_bool(json, key, where, if_absent));
}

void read_attention(const Json& json, const Architecture& architecture, const std::string& where,
                    ModelConfig& config) {
  config.heads = read_size(json, "num_attention_heads", where);
  const bool has_key = json.contains("num_key_value_heads");  // null: one per query head
  config.kv_heads =
      read_size(json, "num_key_value_heads", where,
                has_key ? config.heads : architecture.kv_heads.value_or(config.heads));
  USER_ERROR_IF(config.heads % config.kv_heads != 0,
                "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", where,
                config.heads, config.kv_heads);
  USER_ERROR_IF(
      !has_value(json, "head_dim") && !architecture.head_dim &&
          config.hidden_size % config.heads != 0,
      "{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
      where, config.hidden_size, config.heads);
  config.head_dim = read_size(json, "head_dim", where,
                              architecture.head_dim.value_or(config.hidden_size / config.heads));
  USER_ERROR_IF(config.head_dim % 2 != 0,
                "{}: head_dim {} is odd; rotary positions turn pairs, it must be even", where,
                config.head_dim);
  config.qkv_bias =
      has_part(architecture.qkv_bias, json, "qkv_bias", where, architecture.qkv_bias_if_absent);
  config.qk_norm = has_part(architecture.qk_norm, json, "use_qk_norm", where, false);
  USER_ERROR_IF(config.qkv_bias && config.qk_norm,
                "{}: qkv_bias and use_qk_norm are both true, which no stock model has: set one",
                where);
}

// Returns the window of windowed layers in tokens, or nullopt if all layers attend to all tokens.
std::optional<int64_t> read_window(const Json& json, const Architecture& architecture,
                                   const std::string& where) {
  const bool has_window = json.contains("sliding_window") ? has_value(json, "sliding_window")
                                                          : architecture.window_if_absent > 0;
  const bool is_used = architecture.windowed_layers == WindowedLayers::kAll ||
                       get_bool(json, "use_sliding_window", where, false);
  if (!has_window || !is_used) {
    return std::nullopt;
  }
  return get_int(json, "sliding_window", where, architecture.window_if_absent);
}

bool has_windowed_layer(const Json& json, const Architecture& architecture,
                        const std::string& where, int64_t layers) {
  if (architecture.reads_layer_types && has_value(json, "layer_types")) {
    const Json& types = json.at("layer_types");
    return std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  }
  constexpr int64_t kDefaultMaxWindowLayers = 28;
  const int64_t index = get_int(json, "max_window_layers", where, kDefaultMaxWindowLayers);
  switch (architecture.windowed_layers) {
    case WindowedLayers::kFromIndex:
      return index < layers;
    case WindowedLayers::kEvenBefore:
      return index > 0;
    default:
      return true;
  }
}

// Throws UserError if layer_types has a type other than full_attention and, if the config has a
// window, sliding_attention.
void refuse_layer_types(const Json& json, const Architecture& architecture,
                        const std::string& where) {
  if (!architecture.reads_layer_types || !has_value(json, "layer_types")) {
    return;
  }
  const bool has_window = read_window(json, architecture, where).has_value();
  const Json& types = json.at("layer_types");
  const bool known = types.is_array() && std::ranges::all_of(types, [&](const Json& t) {
                       return t == "full_attention" || (has_window && t == "sliding_attention");
                     });
  USER_ERROR_IF(!known, "{}: layer_types names attention other than full_attention; not supported",
                where);
}

// Returns ModelConfig::sliding_window. Reads config.max_position_embeddings and config.layers.
int64_t read_sliding_window(const Json& json, const Architecture& architecture,
                            const std::string& where, const ModelConfig& config) {
  if (architecture.windowed_layers == WindowedLayers::kNone) {
    return 0;
  }
  const std::optional<int64_t> window = read_window(json, architecture, where);
  if (!window || *window >= config.max_position_embeddings ||
      !has_windowed_layer(json, architecture, where, config.layers)) {
    return 0;
  }
  USER_ERROR_IF(*window < 1, "{}: sliding_window is {}; it must be at least 1, or null for none",
                where, *window);
  return *window;
}

int64_t read_shared_expert(const Json& json, const Architecture& architecture,
                           const std::string& where, bool qk_norm) {
  if (!architecture.may_have_shared_experts) {
    return 0;
  }
  const char* const key = "shared_expert_intermediate_size";
  const int64_t width = get_int(json, key, where, architecture.shared_expert_width);
  USER_ERROR_IF(width != 0 && qk_norm,
                "{}: {} is {} and use_qk_norm is true, which no stock mixture has: set it to 0",
                where, key, width);
  USER_ERROR_IF(width < 0 || width > kMaxSize,
                "{}: {} is {}; it must be between 0, which is none, and {}", where, key, width,
                kMaxSize);
  return width;
}

int64_t read_experts(const Json& json, const Architecture& architecture, const std::string& where,
                     size_t moe_layers) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  // transformers before version 5 writes num_experts for Qwen3-MoE, later num_local_experts.
  const bool is_local = is_mixtral || (architecture.form == FolderForm::kQwen3Moe &&
                                       has_value(json, "num_local_experts"));
  USER_ERROR_IF(
      is_local && !is_mixtral && has_value(json, "num_experts") &&
          get_int(json, "num_experts", where) != get_int(json, "num_local_experts", where),
      "{}: num_experts is {}, num_local_experts is {}; make them equal", where,
      get_int(json, "num_experts", where), get_int(json, "num_local_experts", where));
  const std::string key = is_local ? "num_local_experts" : "num_experts";
  const int64_t fallback = architecture.experts;
  const int64_t experts =
      read_size(json, key, where, fallback > 0 ? std::optional(fallback) : std::nullopt);
  USER_ERROR_IF(experts > kMaxExperts / static_cast<int64_t>(moe_layers),
                "{}: {} experts in {} layers are too many; at most {} in all", where, experts,
                moe_layers, kMaxExperts);
  return experts;
}

void check_router(const MoeConfig& moe, const std::string& where) {
  try {
    route::check_router(moe.router, moe.experts);
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
}

// Reads the mixture of a folder without a "moe" object. The router is top-k without capacity. Its
// gradients and auxiliary loss are those of transformers: lb=selected, and st=off if gate weights
// are renormalized (otherwise st has no effect).
MoeConfig read_stock_moe(const Json& json, const Architecture& architecture,
                         const std::string& where, const ModelConfig& config) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  MoeConfig out;
  out.form = architecture.form;
  if (is_mixtral) {
    out.layers.resize(config.layers);
    std::iota(out.layers.begin(), out.layers.end(), 0);
  } else {
    out.layers = stock_moe_layers(json, where, config.layers);
  }
  USER_ERROR_IF(out.layers.empty(),
                "{}: no layer is a mixture by mlp_only_layers and decoder_sparse_step; a dense "
                "folder has the model_type of a dense model, such as llama or qwen3",
                where);
  out.experts = read_experts(json, architecture, where, out.layers.size());
  out.expert_width =
      is_mixtral ? config.intermediate_size
                 : read_size(json, "moe_intermediate_size", where, architecture.expert_width);
  out.ep_ranks = out.experts;
  out.router.k = read_size(json, "num_experts_per_tok", where, architecture.experts_per_token);
  out.router.capacity_factor = std::nullopt;
  out.router.gate_norm = is_mixtral || get_bool(json, "norm_topk_prob", where, false)
                             ? route::GateNorm::kSelected
                             : route::GateNorm::kNone;
  out.router.straight_through = out.router.gate_norm == route::GateNorm::kNone;
  out.router.lb_count = route::LbCount::kSelected;
  check_router(out, where);
  out.lb_coef = read_number(json, "router_aux_loss_coef", where, /*fallback=*/0.001, true);
  out.router_std = config.initializer_range;
  return out;
}

std::vector<int64_t> read_moe_layers(const Json& moe, const std::string& where, int64_t layers) {
  const std::vector<int64_t> list = get_ints(moe, "layers", where + ": moe");
  USER_ERROR_IF(list.empty(),
                "{}: moe.layers is empty; a folder without MoE layers has no \"moe\" object",
                where);
  for (size_t i = 0; i < list.size(); ++i) {
    USER_ERROR_IF(list[i] < 0 || list[i] >= layers,
                  "{}: moe.layers names layer {}; the model has layers 0 to {}", where, list[i],
                  layers - 1);
    USER_ERROR_IF(i > 0 && list[i] <= list[i - 1],
                  "{}: moe.layers must ascend without repetition, but {} follows {}", where,
                  list[i], list[i - 1]);
  }
  return list;
}

// Throws UserError if the MoE layers by the keys of transformers are not those of `list`.
void check_stock_layers(const Json& json, const Architecture& architecture,
                        const std::string& where, int64_t layers,
                        const std::vector<int64_t>& list) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  USER_ERROR_IF(is_mixtral && std::ssize(list) != layers,
                "{}: moe.layers names {} of {} layers, but every layer of a mixtral is MoE", where,
                list.size(), layers);
  if (is_mixtral ||
      (!has_value(json, "mlp_only_layers") && !has_value(json, "decoder_sparse_step"))) {
    return;
  }
  const std::vector<int64_t> stock_list = stock_moe_layers(json, where, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool stock = std::binary_search(stock_list.begin(), stock_list.end(), layer);
    USER_ERROR_IF(stock != std::binary_search(list.begin(), list.end(), layer),
                  "{}: layer {} is {} by mlp_only_layers and decoder_sparse_step, but {} by "
                  "moe.layers; make them agree",
                  where, layer, stock ? "MoE" : "dense", stock ? "dense" : "MoE");
  }
}

// Returns the form of a folder with a "moe" object: kMixtral for mixtral; for qwen2_moe and
// qwen3_moe kMoe unless moe.form names the stock form.
FolderForm read_form(const Json& moe, const Architecture& architecture, const std::string& where) {
  if (architecture.form == FolderForm::kMixtral) {
    return FolderForm::kMixtral;
  }
  const std::string form = get_string(moe, "form", where + ": moe", "moe");
  if (form == "moe") {
    return FolderForm::kMoe;
  }
  USER_ERROR_IF(architecture.form == FolderForm::kMoe || form != architecture.model_type,
                "{}: moe.form is '{}', which a folder with model_type {} cannot have; known are "
                "moe, and qwen2_moe in a qwen2_moe folder, qwen3_moe in a qwen3_moe folder",
                where, form, architecture.model_type);
  return architecture.form;
}

void check_model_type(const std::string& type, const MoeConfig& moe, bool qk_norm,
                      const std::string& where) {
  const std::string& expected = written_architecture(moe, qk_norm).model_type;
  USER_ERROR_IF(type != "llama" && type != expected,
                "{}: model_type is {}, but a folder with router {} and gate_scale {} must say {}",
                where, type, route::to_string(moe.router), moe.gate_scale, expected);
}

void read_moe_numbers(const Json& moe, const std::string& where, MoeConfig& out) {
  const std::string inside = where + ": moe";
  const auto read = [&](const std::string& key, double fallback, bool allow_zero = true) {
    return finite(get_double(moe, key, inside, fallback), "moe." + key, where, allow_zero);
  };
  out.gate_scale = read("gate_scale", 1.0, /*allow_zero=*/false);
  out.ep_ranks = bounded(get_int(moe, "ep_ranks", inside, out.experts), "moe.ep_ranks", where);
  USER_ERROR_IF(out.experts % out.ep_ranks != 0,
                "{}: {} experts do not divide over moe.ep_ranks {}", where, out.experts,
                out.ep_ranks);
  out.lb_coef = read("lb_coef", route::default_lb_coef(out.router));
  out.entropy_coef = read("entropy_coef", route::default_entropy_coef(out.router));
  out.z_coef = read("z_coef", 0);
  out.seq_lb_coef = read("seq_lb_coef", 0);
  if (has_value(moe, "lambda")) {
    out.lambda = read("lambda", 0);
  }
}

void read_moe_provenance(const Json& moe, const std::string& where, MoeConfig& out) {
  if (has_value(moe, "router_init")) {
    const Json& init = get_object(moe, "router_init", where);
    out.router_std = finite(get_double(init, "std", where + ".router_init", 0.02),
                            "moe.router_init.std", where, true);
    out.router_seed = get_int(init, "seed", where + ".router_init", 0);
  }
  if (has_value(moe, "source")) {
    const Json& source = get_object(moe, "source", where);
    out.source_name = get_string(source, "name", where + ".source", "");
    out.source_sha256 = get_string(source, "sha256", where + ".source", "");
  }
}

// Reads the "moe" object (core/io/formats.md), with which the keys of transformers must agree.
MoeConfig read_moe(const Json& json, const Architecture& architecture, const std::string& where,
                   const ModelConfig& config) {
  const Json& moe = get_object(json, "moe", where);
  const std::string inside = where + ": moe";
  const int64_t format = get_int(moe, "format", inside);
  USER_ERROR_IF(format != 1, "{}: moe.format is {}; this version of moe reads format 1", where,
                format);
  MoeConfig out;
  out.form = read_form(moe, architecture, where);
  out.layers = read_moe_layers(moe, where, config.layers);
  check_stock_layers(json, architecture, where, config.layers, out.layers);
  out.experts = read_experts(json, architecture, where, out.layers.size());
  out.granularity = bounded(get_int(moe, "granularity", inside, 1), "moe.granularity", where);
  out.expert_width =
      out.form == FolderForm::kMixtral
          ? config.intermediate_size
          : read_size(json, "moe_intermediate_size", where,
                      std::max<int64_t>(1, config.intermediate_size / out.granularity));
  USER_ERROR_IF(!has_value(moe, "router"), "{}: moe.router is missing", where);
  out.router = route::router_from_json(get_object(moe, "router", inside), inside + ".router");
  check_router(out, where);
  USER_ERROR_IF(out.router.family->has_token_requests &&
                    get_int(json, "num_experts_per_tok", where, out.router.k) != out.router.k,
                "{}: num_experts_per_tok is {}, moe.router.k is {}; make them equal", where,
                get_int(json, "num_experts_per_tok", where), out.router.k);
  read_moe_numbers(moe, where, out);
  read_moe_provenance(moe, inside, out);
  check_model_type(architecture.model_type, out, config.qk_norm, where);
  return out;
}

void read_mixture(const Json& json, const Architecture& architecture, const std::string& where,
                  ModelConfig& config) {
  config.moe = has_value(json, "moe") ? read_moe(json, architecture, where, config)
                                      : read_stock_moe(json, architecture, where, config);
  config.moe->shared_expert_width = read_shared_expert(json, architecture, where, config.qk_norm);
  if (architecture.form == FolderForm::kMixtral) {
    config.moe->router_jitter = read_number(json, "router_jitter_noise", where, 0, true);
  }
}

std::string read_dtype(const Json& json, const std::string& where) {
  std::string name =
      get_string(json, "dtype", where, get_string(json, "torch_dtype", where, "float32"));
  if (name.rfind("torch.", 0) == 0) {
    name = name.substr(6);
  }
  USER_ERROR_IF(name != "float32" && name != "bfloat16" && name != "float16",
                "{}: dtype '{}' is not supported; known are float32, bfloat16 and float16", where,
                name);
  return name;
}

void check_total_size(const ModelConfig& config, const std::string& where) {
  const double hidden = config.hidden_size;
  const double vocabulary = 2.0 * config.vocab_size * hidden;
  const double attention = 2.0 * hidden * (config.heads + config.kv_heads) * config.head_dim;
  const double dense = 3.0 * hidden * config.intermediate_size;
  double total = vocabulary + config.layers * (attention + dense + 2.0 * hidden);
  if (config.moe) {
    const double experts = config.moe->experts * (3.0 * config.moe->expert_width + 1.0);
    const double shared = 3.0 * config.moe->shared_expert_width + 1.0;
    total += config.moe->layers.size() * hidden * (experts + shared);
  }
  USER_ERROR_IF(
      total > kMaxParameters,
      "{}: these sizes make {:.3g} parameters, beyond the limit of 2^50; one of them must be wrong",
      where, total);
}

}  // namespace

bool ModelConfig::is_moe_layer(int64_t layer) const {
  return moe && std::binary_search(moe->layers.begin(), moe->layers.end(), layer);
}

int64_t ModelConfig::longest_sequence() const {
  return sliding_window > 0 ? sliding_window : max_position_embeddings;
}

std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers) {
  std::vector<int64_t> dense = has_value(json, "mlp_only_layers")
                                   ? get_ints(json, "mlp_only_layers", where)
                                   : std::vector<int64_t>();
  std::sort(dense.begin(), dense.end());
  const int64_t step = read_size(json, "decoder_sparse_step", where, 1);
  std::vector<int64_t> list;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if ((layer + 1) % step == 0 && !std::binary_search(dense.begin(), dense.end(), layer)) {
      list.push_back(layer);
    }
  }
  return list;
}

ModelConfig parse_config(const Json& json, const std::string& where) {
  USER_ERROR_IF(!json.is_object(), "{}: a config must be a JSON object, not {}", where,
                json.type_name());
  const Architecture& architecture = read_architecture(json, where);
  USER_ERROR_IF(
      architecture.is_mixture && architecture.form == FolderForm::kMoe && !has_value(json, "moe"),
      "{}: a {} folder without the \"moe\" object that moe writes into it", where,
      architecture.model_type);
  refuse_unsupported_keys(json, architecture, where);
  ModelConfig config;
  config.model_type = architecture.model_type;
  config.vocab_size = read_size(json, "vocab_size", where);
  config.hidden_size = read_size(json, "hidden_size", where);
  config.intermediate_size = read_size(json, "intermediate_size", where);
  config.layers = read_size(json, "num_hidden_layers", where, {}, kMaxLayers);
  read_attention(json, architecture, where, config);
  config.max_position_embeddings =
      read_size(json, "max_position_embeddings", where, architecture.max_position_embeddings);
  config.rms_norm_eps = read_number(json, "rms_norm_eps", where, architecture.rms_norm_eps, false);
  config.tie_word_embeddings = get_bool(json, "tie_word_embeddings", where, false);
  config.initializer_range = read_number(json, "initializer_range", where, 0.02, true);
  config.rope = read_rope(json, where, architecture.rope_theta);
  config.dtype = read_dtype(json, where);
  refuse_layer_types(json, architecture, where);
  config.sliding_window = read_sliding_window(json, architecture, where, config);
  if (architecture.is_mixture || has_value(json, "moe")) {
    read_mixture(json, architecture, where, config);
  }
  check_total_size(config, where);
  return config;
}

}  // namespace moe::model
