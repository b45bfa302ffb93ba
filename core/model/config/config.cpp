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

// Returns `value`. Throws UserError unless it is finite and positive, or zero with `allow_zero`.
double check_number(double value, const std::string& name, const std::string& where,
                    bool allow_zero) {
  USER_ERROR_IF(!std::isfinite(value) || value < 0 || (value == 0 && !allow_zero),
                "{}: {} is {}; it must be {} number", where, name, value,
                allow_zero ? "zero or a positive" : "a positive");
  return value;
}

// An object of config.json. Functions throw UserError that begins with `where` and names the key.
struct Object {
  const Json& json;
  std::string where;
  std::string path = {};  // of a nested object: "moe.router_init"

  std::string place() const { return path.empty() ? where : where + ": " + path; }
  std::string name(const std::string& key) const { return path.empty() ? key : path + "." + key; }
  bool has(const std::string& key) const { return has_value(json, key); }
  bool get_flag(const std::string& key, bool fallback = false) const {
    return get_bool(json, key, place(), fallback);
  }
  int64_t get_integer(const std::string& key, std::optional<int64_t> fallback = {}) const {
    return get_int(json, key, place(), fallback);
  }
  std::string get_text(const std::string& key, const std::string& fallback) const {
    return get_string(json, key, place(), fallback);
  }
  // Returns an integer in [1, max].
  int64_t get_size(const std::string& key, std::optional<int64_t> fallback = {},
                   int64_t max = kMaxSize) const {
    const int64_t value = get_integer(key, fallback);
    USER_ERROR_IF(value < 1 || value > max, "{}: {} is {}; it must be between 1 and {}", where,
                  name(key), value, max);
    return value;
  }
  // Return a finite number. get_number() accepts 0, get_positive() does not.
  double get_number(const std::string& key, double fallback) const {
    return check_number(get_double(json, key, place(), fallback), name(key), where, true);
  }
  double get_positive(const std::string& key, std::optional<double> fallback = {}) const {
    return check_number(get_double(json, key, place(), fallback), name(key), where, false);
  }
  Object get_object(const std::string& key) const {
    USER_ERROR_IF(!json.at(key).is_object(), "{}: {} must be an object, not {}", where, name(key),
                  json.at(key).type_name());
    return {json.at(key), where, name(key)};
  }
};

RopeType read_rope_type(const Object& rope) {
  const std::string name = rope.get_text("rope_type", rope.get_text("type", "default"));
  const auto type = std::ranges::find(kRopeTypeNames, name);
  USER_ERROR_IF(
      type == kRopeTypeNames.end(),
      "{}: rope type '{}' is not supported; known are default, linear, dynamic and llama3",
      rope.place(), name);
  return static_cast<RopeType>(type - kRopeTypeNames.begin());
}

// Reads one dictionary, rope_scaling or rope_parameters, without rope_theta.
RopeConfig read_rope_dictionary(const Object& object) {
  const std::string where = object.place();
  for (const auto& [key, value] : object.json.items()) {
    USER_ERROR_IF(value.is_object(),
                  "{}: '{}' sets RoPE parameters for some layers only, which is not supported",
                  where, key);
  }
  USER_ERROR_IF(get_double(object.json, "partial_rotary_factor", where, 1.0) != 1.0,
                "{}: partial_rotary_factor other than 1 is not supported", where);
  RopeConfig rope;
  rope.type = read_rope_type(object);
  int64_t& original = rope.original_max_position_embeddings;
  original = object.get_integer("original_max_position_embeddings", 0);
  USER_ERROR_IF(original < 0 || original > kMaxSize,
                "{}: original_max_position_embeddings is {}; it must be between 0 and {}", where,
                original, kMaxSize);
  if (rope.type == RopeType::kDefault) {
    return rope;
  }
  rope.factor = get_double(object.json, "factor", where);
  USER_ERROR_IF(!std::isfinite(rope.factor) || rope.factor < 1,
                "{}: the rope factor is {}; it must be at least 1", where, rope.factor);
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = object.get_positive("low_freq_factor");
    rope.high_freq_factor = object.get_positive("high_freq_factor");
    USER_ERROR_IF(rope.high_freq_factor <= rope.low_freq_factor,
                  "{}: high_freq_factor {} must be above low_freq_factor {}", where,
                  rope.high_freq_factor, rope.low_freq_factor);
    USER_ERROR_IF(original == 0, "{}: llama3 rope needs original_max_position_embeddings", where);
  }
  return rope;
}

// Reads rope_theta, rope_scaling and rope_parameters. config_json() writes both dictionaries, and
// rope_theta may be at the top level and in both. Throws UserError if values contradict each other.
RopeConfig read_rope(const Object& config, double default_theta) {
  std::optional<RopeConfig> rope;
  std::optional<double> theta;
  const auto refuse_if = [&](bool contradicts) {
    USER_ERROR_IF(contradicts,
                  "{}: rope_theta, rope_scaling and rope_parameters contradict each other; remove "
                  "the wrong ones",
                  config.where);
  };
  const auto read_theta = [&](const Object& object) {
    if (object.has("rope_theta")) {
      const double value = get_double(object.json, "rope_theta", object.place());
      refuse_if(theta && *theta != value);
      theta = value;
    }
  };
  read_theta(config);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.has(key)) {
      const Object dictionary = config.get_object(key);
      const RopeConfig read = read_rope_dictionary(dictionary);
      refuse_if(rope && *rope != read);
      rope = read;
      read_theta(dictionary);
    }
  }
  RopeConfig result = rope.value_or(RopeConfig());
  result.theta = check_number(theta.value_or(default_theta), "rope_theta", config.where, false);
  return result;
}

// Returns true if the model has an optional part. `key` decides for Presence::kByKey.
bool has_part(Presence presence, const Object& object, const std::string& key, bool if_absent) {
  return presence == Presence::kAlways ||
         (presence == Presence::kByKey && object.get_flag(key, if_absent));
}

void read_attention(const Object& object, const Architecture& architecture, ModelConfig& config) {
  const std::string& where = object.where;
  config.heads = object.get_size("num_attention_heads");
  const bool has_key = object.json.contains("num_key_value_heads");  // null: one per query head
  config.kv_heads = object.get_size(
      "num_key_value_heads", has_key ? config.heads : architecture.kv_heads.value_or(config.heads));
  USER_ERROR_IF(config.heads % config.kv_heads != 0,
                "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", where,
                config.heads, config.kv_heads);
  USER_ERROR_IF(
      !object.has("head_dim") && !architecture.head_dim && config.hidden_size % config.heads != 0,
      "{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
      where, config.hidden_size, config.heads);
  config.head_dim = object.get_size(
      "head_dim", architecture.head_dim.value_or(config.hidden_size / config.heads));
  USER_ERROR_IF(config.head_dim % 2 != 0,
                "{}: head_dim {} is odd; RoPE rotates pairs, so it must be even", where,
                config.head_dim);
  config.qkv_bias =
      has_part(architecture.qkv_bias, object, "qkv_bias", architecture.qkv_bias_if_absent);
  config.qk_norm = has_part(architecture.qk_norm, object, "use_qk_norm", false);
  USER_ERROR_IF(config.qkv_bias && config.qk_norm,
                "{}: qkv_bias and use_qk_norm are both true, which no stock model has: set one",
                where);
}

// Returns the window of windowed layers in tokens, or nullopt if all layers attend to all tokens.
std::optional<int64_t> read_window(const Object& object, const Architecture& architecture) {
  const bool has_window = object.json.contains("sliding_window")
                              ? object.has("sliding_window")
                              : architecture.window_if_absent > 0;
  const bool is_used =
      architecture.windowed_layers == WindowedLayers::kAll || object.get_flag("use_sliding_window");
  if (!has_window || !is_used) {
    return std::nullopt;
  }
  return object.get_integer("sliding_window", architecture.window_if_absent);
}

bool has_windowed_layer(const Object& object, const Architecture& architecture, int64_t layers) {
  if (architecture.reads_layer_types && object.has("layer_types")) {
    const Json& types = object.json.at("layer_types");
    return std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  }
  constexpr int64_t kDefaultMaxWindowLayers = 28;
  const int64_t index = object.get_integer("max_window_layers", kDefaultMaxWindowLayers);
  switch (architecture.windowed_layers) {
    case WindowedLayers::kFromIndex:
      return index < layers;
    case WindowedLayers::kEvenBefore:
      return index > 0;
    default:
      return true;
  }
}

// Returns ModelConfig::sliding_window. Reads config.max_position_embeddings and config.layers.
// Throws UserError if layer_types has a type other than full_attention and, if the config has a
// window, sliding_attention.
int64_t read_sliding_window(const Object& object, const Architecture& architecture,
                            const ModelConfig& config) {
  const std::optional<int64_t> window = read_window(object, architecture);
  if (architecture.reads_layer_types && object.has("layer_types")) {
    const Json& types = object.json.at("layer_types");
    const bool known = types.is_array() && std::ranges::all_of(types, [&](const Json& type) {
                         return type == "full_attention" || (window && type == "sliding_attention");
                       });
    USER_ERROR_IF(!known,
                  "{}: layer_types names attention other than full_attention; not supported",
                  object.where);
  }
  if (architecture.windowed_layers == WindowedLayers::kNone || !window ||
      *window >= config.max_position_embeddings ||
      !has_windowed_layer(object, architecture, config.layers)) {
    return 0;
  }
  USER_ERROR_IF(*window < 1, "{}: sliding_window is {}; it must be at least 1, or null for none",
                object.where, *window);
  return *window;
}

int64_t read_shared_expert(const Object& object, const Architecture& architecture, bool qk_norm) {
  if (!architecture.may_have_shared_experts) {
    return 0;
  }
  const char* const key = "shared_expert_intermediate_size";
  const int64_t width = object.get_integer(key, architecture.shared_expert_width);
  USER_ERROR_IF(width != 0 && qk_norm,
                "{}: {} is {} and use_qk_norm is true, which no stock mixture has: set it to 0",
                object.where, key, width);
  USER_ERROR_IF(width < 0 || width > kMaxSize,
                "{}: {} is {}; it must be between 0 (no shared expert) and {}", object.where, key,
                width, kMaxSize);
  return width;
}

int64_t read_experts(const Object& object, const Architecture& architecture, size_t moe_layers) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  // For Qwen3-MoE transformers writes num_experts before version 5, num_local_experts since.
  const bool is_local =
      is_mixtral || (architecture.form == FolderForm::kQwen3Moe && object.has("num_local_experts"));
  USER_ERROR_IF(is_local && !is_mixtral && object.has("num_experts") &&
                    object.get_integer("num_experts") != object.get_integer("num_local_experts"),
                "{}: num_experts is {}, num_local_experts is {}; make them equal", object.where,
                object.get_integer("num_experts"), object.get_integer("num_local_experts"));
  const int64_t fallback = architecture.experts;
  const int64_t experts = object.get_size(is_local ? "num_local_experts" : "num_experts",
                                          fallback > 0 ? std::optional(fallback) : std::nullopt);
  USER_ERROR_IF(experts > kMaxExperts / static_cast<int64_t>(moe_layers),
                "{}: {} experts in {} layers are too many; at most {} in all layers", object.where,
                experts, moe_layers, kMaxExperts);
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
MoeConfig read_stock_moe(const Object& object, const Architecture& architecture,
                         const ModelConfig& config) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  MoeConfig out;
  out.form = architecture.form;
  if (is_mixtral) {
    out.layers.resize(config.layers);
    std::iota(out.layers.begin(), out.layers.end(), 0);
  } else {
    out.layers = stock_moe_layers(object.json, object.where, config.layers);
  }
  USER_ERROR_IF(out.layers.empty(),
                "{}: no layer is a mixture by mlp_only_layers and decoder_sparse_step; a dense "
                "folder has the model_type of a dense model, such as llama or qwen3",
                object.where);
  out.experts = read_experts(object, architecture, out.layers.size());
  out.expert_width = is_mixtral
                         ? config.intermediate_size
                         : object.get_size("moe_intermediate_size", architecture.expert_width);
  out.ep_ranks = out.experts;
  out.router.k = object.get_size("num_experts_per_tok", architecture.experts_per_token);
  out.router.capacity_factor = std::nullopt;
  out.router.straight_through = !is_mixtral && !object.get_flag("norm_topk_prob");
  out.router.gate_norm =
      out.router.straight_through ? route::GateNorm::kNone : route::GateNorm::kSelected;
  out.router.lb_count = route::LbCount::kSelected;
  check_router(out, object.where);
  out.lb_coef = object.get_number("router_aux_loss_coef", 0.001);
  out.router_std = config.initializer_range;
  return out;
}

std::vector<int64_t> read_moe_layers(const Object& moe, int64_t layers) {
  const std::vector<int64_t> list = get_ints(moe.json, "layers", moe.place());
  USER_ERROR_IF(list.empty(),
                "{}: moe.layers is empty; a folder without MoE layers has no \"moe\" object",
                moe.where);
  for (size_t i = 0; i < list.size(); ++i) {
    USER_ERROR_IF(list[i] < 0 || list[i] >= layers,
                  "{}: moe.layers names layer {}; the model has layers 0 to {}", moe.where, list[i],
                  layers - 1);
    USER_ERROR_IF(i > 0 && list[i] <= list[i - 1],
                  "{}: moe.layers must ascend without repetition, but {} follows {}", moe.where,
                  list[i], list[i - 1]);
  }
  return list;
}

// Throws UserError if the MoE layers by the keys of transformers are not those of `list`.
void check_stock_layers(const Object& object, const Architecture& architecture, int64_t layers,
                        const std::vector<int64_t>& list) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  USER_ERROR_IF(is_mixtral && std::ssize(list) != layers,
                "{}: moe.layers names {} of {} layers, but every layer of a mixtral is MoE",
                object.where, list.size(), layers);
  if (is_mixtral || (!object.has("mlp_only_layers") && !object.has("decoder_sparse_step"))) {
    return;
  }
  const std::vector<int64_t> stock_list = stock_moe_layers(object.json, object.where, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool stock = std::ranges::binary_search(stock_list, layer);
    USER_ERROR_IF(stock != std::ranges::binary_search(list, layer),
                  "{}: layer {} is {} by mlp_only_layers and decoder_sparse_step, but {} by "
                  "moe.layers; make them agree",
                  object.where, layer, stock ? "MoE" : "dense", stock ? "dense" : "MoE");
  }
}

// Returns the form of a folder with a "moe" object: kMixtral for mixtral; for qwen2_moe and
// qwen3_moe kMoe unless moe.form names the stock form.
FolderForm read_form(const Object& moe, const Architecture& architecture) {
  if (architecture.form == FolderForm::kMixtral) {
    return FolderForm::kMixtral;
  }
  const std::string form = moe.get_text("form", "moe");
  if (form == "moe") {
    return FolderForm::kMoe;
  }
  USER_ERROR_IF(architecture.form == FolderForm::kMoe || form != architecture.model_type,
                "{}: moe.form is '{}', which a folder with model_type {} cannot have; known are "
                "moe, and qwen2_moe in a qwen2_moe folder, qwen3_moe in a qwen3_moe folder",
                moe.where, form, architecture.model_type);
  return architecture.form;
}

void read_moe_numbers(const Object& moe, MoeConfig& out) {
  out.gate_scale = moe.get_positive("gate_scale", 1.0);
  out.ep_ranks = moe.get_size("ep_ranks", out.experts);
  USER_ERROR_IF(out.experts % out.ep_ranks != 0,
                "{}: {} experts do not divide over moe.ep_ranks {}", moe.where, out.experts,
                out.ep_ranks);
  out.lb_coef = moe.get_number("lb_coef", route::default_lb_coef(out.router));
  out.entropy_coef = moe.get_number("entropy_coef", route::default_entropy_coef(out.router));
  out.z_coef = moe.get_number("z_coef", 0);
  out.seq_lb_coef = moe.get_number("seq_lb_coef", 0);
  if (moe.has("lambda")) {
    out.lambda = moe.get_number("lambda", 0);
  }
  if (moe.has("router_init")) {
    const Object init = moe.get_object("router_init");
    out.router_std = init.get_number("std", 0.02);
    out.router_seed = init.get_integer("seed", 0);
  }
  if (moe.has("source")) {
    const Object source = moe.get_object("source");
    out.source_name = source.get_text("name", "");
    out.source_sha256 = source.get_text("sha256", "");
  }
}

// Reads the "moe" object (core/io/formats.md), with which the keys of transformers must agree.
MoeConfig read_moe(const Object& object, const Architecture& architecture,
                   const ModelConfig& config) {
  const Object moe = object.get_object("moe");
  const std::string& where = object.where;
  const int64_t format = moe.get_integer("format");
  USER_ERROR_IF(format != 1, "{}: moe.format is {}; this version of moe reads format 1", where,
                format);
  MoeConfig out;
  out.form = read_form(moe, architecture);
  out.layers = read_moe_layers(moe, config.layers);
  check_stock_layers(object, architecture, config.layers, out.layers);
  out.experts = read_experts(object, architecture, out.layers.size());
  out.granularity = moe.get_size("granularity", 1);
  out.expert_width =
      out.form == FolderForm::kMixtral
          ? config.intermediate_size
          : object.get_size("moe_intermediate_size",
                            std::max<int64_t>(1, config.intermediate_size / out.granularity));
  USER_ERROR_IF(!moe.has("router"), "{}: moe.router is missing", where);
  const Object router = moe.get_object("router");
  out.router = route::router_from_json(router.json, router.place());
  check_router(out, where);
  USER_ERROR_IF(out.router.family->has_token_requests &&
                    object.get_integer("num_experts_per_tok", out.router.k) != out.router.k,
                "{}: num_experts_per_tok is {}, moe.router.k is {}; make them equal", where,
                object.get_integer("num_experts_per_tok"), out.router.k);
  read_moe_numbers(moe, out);
  const std::string& type = architecture.model_type;
  const std::string& expected = written_architecture(out, config.qk_norm).model_type;
  USER_ERROR_IF(type != "llama" && type != expected,
                "{}: model_type is {}, but a folder with router {} and gate_scale {} must have {}",
                where, type, route::to_string(out.router), out.gate_scale, expected);
  return out;
}

std::string read_dtype(const Object& object) {
  std::string name = object.get_text("dtype", object.get_text("torch_dtype", "float32"));
  name.erase(0, name.starts_with("torch.") ? 6 : 0);
  USER_ERROR_IF(name != "float32" && name != "bfloat16" && name != "float16",
                "{}: dtype '{}' is not supported; known are float32, bfloat16 and float16",
                object.where, name);
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
  return moe && std::ranges::binary_search(moe->layers, layer);
}

int64_t ModelConfig::longest_sequence() const {
  return sliding_window > 0 ? sliding_window : max_position_embeddings;
}

std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers) {
  std::vector<int64_t> dense, list;
  if (has_value(json, "mlp_only_layers")) {
    dense = get_ints(json, "mlp_only_layers", where);
  }
  const int64_t step = Object{json, where}.get_size("decoder_sparse_step", 1);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if ((layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end()) {
      list.push_back(layer);
    }
  }
  return list;
}

ModelConfig parse_config(const Json& json, const std::string& where) {
  USER_ERROR_IF(!json.is_object(), "{}: a config must be a JSON object, not {}", where,
                json.type_name());
  const Object object{json, where};
  const Architecture& architecture = read_architecture(json, where);
  USER_ERROR_IF(
      architecture.is_mixture && architecture.form == FolderForm::kMoe && !object.has("moe"),
      "{}: a {} folder without the \"moe\" object that moe writes into it", where,
      architecture.model_type);
  refuse_unsupported_keys(json, architecture, where);
  ModelConfig config;
  config.model_type = architecture.model_type;
  config.vocab_size = object.get_size("vocab_size");
  config.hidden_size = object.get_size("hidden_size");
  config.intermediate_size = object.get_size("intermediate_size");
  config.layers = object.get_size("num_hidden_layers", {}, kMaxLayers);
  read_attention(object, architecture, config);
  config.max_position_embeddings =
      object.get_size("max_position_embeddings", architecture.max_position_embeddings);
  config.rms_norm_eps = object.get_positive("rms_norm_eps", architecture.rms_norm_eps);
  config.tie_word_embeddings = object.get_flag("tie_word_embeddings");
  config.initializer_range = object.get_number("initializer_range", 0.02);
  config.rope = read_rope(object, architecture.rope_theta);
  config.dtype = read_dtype(object);
  config.sliding_window = read_sliding_window(object, architecture, config);
  if (architecture.is_mixture || object.has("moe")) {
    config.moe = object.has("moe") ? read_moe(object, architecture, config)
                                   : read_stock_moe(object, architecture, config);
    config.moe->shared_expert_width = read_shared_expert(object, architecture, config.qk_norm);
    if (architecture.form == FolderForm::kMixtral) {
      config.moe->router_jitter = object.get_number("router_jitter_noise", 0);
    }
  }
  check_total_size(config, where);
  return config;
}

ModelConfig read_config(const std::filesystem::path& path) {
  constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
  const auto file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  return parse_config(read_json(file, kMaxBytes), file.string());
}

}  // namespace moe::model
