// Reads config.json: LLaMA's keys in their old and new spelling, and our "moe" object. Whatever
// would change the function that the weights compute and is not computed here is refused by its
// name, never ignored: a rope scaling read as none gives fluent nonsense. Sizes are bounded so that
// no product of them overflows later.

#include "core/model/config.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 31;  // of one dimension
constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr int64_t kMaxExperts = int64_t{1} << 18;  // over all layers; each is three tensors by name
constexpr double kMaxParameters =
    1125899906842624.0;  // 2^50, so that bytes and sums stay far from 2^63

int64_t bounded(int64_t value, const std::string& key, const std::string& where, int64_t most) {
  if (value < 1 || value > most) {
    throw UserError("{}: {} is {}; it must be between 1 and {}", where, key, value, most);
  }
  return value;
}

int64_t read_size(const Json& json,
                  const std::string& key,
                  const std::string& where,
                  int64_t most = kMaxSize) {
  return bounded(get_int(json, key, where), key, where, most);
}

int64_t read_size_or(const Json& json,
                     const std::string& key,
                     const std::string& where,
                     int64_t fallback) {
  return bounded(get_int(json, key, where, fallback), key, where, kMaxSize);
}

// A finite number that is positive, or not negative where `zero_is_fine`.
double finite(double value, const std::string& key, const std::string& where, bool zero_is_fine) {
  if (!std::isfinite(value) || value < 0 || (value == 0 && !zero_is_fine)) {
    throw UserError("{}: {} is {}; it must be {} number",
                    where,
                    key,
                    value,
                    zero_is_fine ? "zero or a positive" : "a positive");
  }
  return value;
}

bool given(const Json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

const Json& object_at(const Json& json, const std::string& key, const std::string& where) {
  if (!json.at(key).is_object()) {
    throw UserError("{}: {} must be an object, not {}", where, key, json.at(key).type_name());
  }
  return json.at(key);
}

// The kind of folder, by model_type or, where that is absent, by architecture.
std::string read_model_type(const Json& json, const std::string& where) {
  const std::string type = get_string(json, "model_type", where, "");
  std::string architecture;
  if (given(json, "architectures")) {
    const Json& list = json.at("architectures");
    if (!list.is_array() || list.empty() || !list.front().is_string()) {
      throw UserError("{}: architectures must be a list of names, such as [\"LlamaForCausalLM\"]",
                      where);
    }
    architecture = list.front().get<std::string>();
  }
  if (type.empty() && architecture.empty()) {
    throw UserError(
        "{}: neither model_type nor architectures is there; a LLaMA folder has model_type "
        "\"llama\"",
        where);
  }
  const std::vector<std::pair<std::string, std::string>> known = {
      {"llama", "LlamaForCausalLM"},
      {"qwen2_moe", "Qwen2MoeForCausalLM"},
      {"moe_relu", "MoeReluForCausalLM"},
      {"moe_scaled", "MoeScaledForCausalLM"}};
  for (const auto& [name, its_architecture] : known) {
    if ((type.empty() || type == name) &&
        (architecture.empty() || architecture == its_architecture)) {
      return name;
    }
  }
  throw UserError(
      "{}: architecture '{}' with model_type '{}' is not read; known are LlamaForCausalLM (llama) "
      "and the MoE folders "
      "that moe writes (qwen2_moe, moe_relu or moe_scaled with a \"moe\" object)",
      where,
      architecture,
      type);
}

void refuse_what_is_not_computed(const Json& json, const std::string& where) {
  const std::string activation = get_string(json, "hidden_act", where, "silu");
  if (activation != "silu") {
    throw UserError("{}: hidden_act '{}' is not supported; LLaMA's is silu", where, activation);
  }
  for (const char* key : {"attention_bias", "mlp_bias", "qkv_bias", "use_sliding_window"}) {
    if (get_bool(json, key, where, false)) {
      throw UserError(
          "{}: {} is true; such models are not supported, only LLaMA without it", where, key);
    }
  }
  if (given(json, "quantization_config")) {
    throw UserError(
        "{}: quantization_config is set; fetch or make the folder in float32, bfloat16 or float16",
        where);
  }
  const int64_t shared = get_int(json, "shared_expert_intermediate_size", where, 0);
  if (given(json, "moe") && shared != 0) {
    throw UserError(
        "{}: shared_expert_intermediate_size is {}; shared experts are not supported, it must be 0",
        where,
        shared);
  }
}

RopeType rope_type(const Json& json, const std::string& where) {
  const std::string name =
      get_string(json, "rope_type", where, get_string(json, "type", where, "default"));
  const std::vector<std::pair<std::string, RopeType>> known = {{"default", RopeType::kDefault},
                                                               {"linear", RopeType::kLinear},
                                                               {"dynamic", RopeType::kDynamic},
                                                               {"llama3", RopeType::kLlama3}};
  for (const auto& [known_name, type] : known) {
    if (name == known_name) {
      return type;
    }
  }
  throw UserError(
      "{}: rope type '{}' is not supported; known are default, linear, dynamic and llama3",
      where,
      name);
}

// The scaling part of one dictionary, rope_scaling or rope_parameters.
RopeConfig read_rope_dictionary(const Json& json, const std::string& where) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      throw UserError(
          "{}: '{}' gives a rope of its own to some layers, which is not supported", where, key);
    }
  }
  if (get_double(json, "partial_rotary_factor", where, 1.0) != 1.0) {
    throw UserError("{}: partial_rotary_factor other than 1 is not supported", where);
  }
  RopeConfig rope;
  rope.type = rope_type(json, where);
  rope.original_max_position_embeddings =
      get_int(json, "original_max_position_embeddings", where, 0);
  if (rope.original_max_position_embeddings < 0 ||
      rope.original_max_position_embeddings > kMaxSize) {
    throw UserError("{}: original_max_position_embeddings is {}; it must be between 0 and {}",
                    where,
                    rope.original_max_position_embeddings,
                    kMaxSize);
  }
  if (rope.type == RopeType::kDefault) {
    return rope;
  }
  rope.factor = get_double(json, "factor", where);
  if (!std::isfinite(rope.factor) || rope.factor < 1) {
    throw UserError("{}: the rope factor is {}; it must be at least 1", where, rope.factor);
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor =
        finite(get_double(json, "low_freq_factor", where), "low_freq_factor", where, false);
    rope.high_freq_factor =
        finite(get_double(json, "high_freq_factor", where), "high_freq_factor", where, false);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      throw UserError("{}: high_freq_factor {} must be above low_freq_factor {}",
                      where,
                      rope.high_freq_factor,
                      rope.low_freq_factor);
    }
    if (rope.original_max_position_embeddings == 0) {
      throw UserError("{}: llama3 rope needs original_max_position_embeddings", where);
    }
  }
  return rope;
}

bool same_scaling(const RopeConfig& a, const RopeConfig& b) {
  return a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

// Both forms may stand side by side (we write both); then they must say the same.
RopeConfig read_rope(const Json& json, const std::string& where) {
  RopeConfig rope;
  const double old_theta = get_double(json, "rope_theta", where, 10000.0);
  double theta = old_theta;
  if (given(json, "rope_scaling")) {
    rope = read_rope_dictionary(object_at(json, "rope_scaling", where), where + ": rope_scaling");
  }
  if (given(json, "rope_parameters")) {
    const Json& parameters = object_at(json, "rope_parameters", where);
    const RopeConfig newer = read_rope_dictionary(parameters, where + ": rope_parameters");
    theta = get_double(parameters, "rope_theta", where + ": rope_parameters", old_theta);
    if ((given(json, "rope_scaling") && !same_scaling(rope, newer)) ||
        (given(json, "rope_theta") && theta != old_theta)) {
      throw UserError(
          "{}: rope_parameters and rope_theta/rope_scaling say different things; remove the wrong "
          "one of the two forms",
          where);
    }
    rope = newer;
  }
  rope.theta = finite(theta, "rope_theta", where, false);
  return rope;
}

std::string read_dtype(const Json& json, const std::string& where) {
  std::string name =
      get_string(json, "dtype", where, get_string(json, "torch_dtype", where, "float32"));
  if (name.rfind("torch.", 0) == 0) {
    name = name.substr(6);
  }
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    throw UserError(
        "{}: dtype '{}' is not supported; known are float32, bfloat16 and float16", where, name);
  }
  return name;
}

void read_attention(const Json& json, const std::string& where, ModelConfig& config) {
  config.heads = read_size(json, "num_attention_heads", where);
  config.kv_heads = read_size_or(json, "num_key_value_heads", where, config.heads);
  if (config.heads % config.kv_heads != 0) {
    throw UserError("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                    where,
                    config.heads,
                    config.kv_heads);
  }
  if (!given(json, "head_dim") && config.hidden_size % config.heads != 0) {
    throw UserError(
        "{}: hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given",
        where,
        config.hidden_size,
        config.heads);
  }
  config.head_dim = read_size_or(json, "head_dim", where, config.hidden_size / config.heads);
  if (config.head_dim % 2 != 0) {
    throw UserError("{}: head_dim {} is odd; rotary positions turn pairs, it must be even",
                    where,
                    config.head_dim);
  }
}

// The layer list of "moe", and that mlp_only_layers (what stock tools read) says the same.
std::vector<int64_t> read_moe_layers(const Json& json,
                                     const Json& moe,
                                     const std::string& where,
                                     int64_t layers) {
  const std::vector<int64_t> list = get_ints(moe, "layers", where + ": moe");
  if (list.empty()) {
    throw UserError("{}: moe.layers is empty; a folder without MoE layers has no \"moe\" object",
                    where);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= layers) {
      throw UserError("{}: moe.layers names layer {}; the model has layers 0 to {}",
                      where,
                      list[i],
                      layers - 1);
    }
    if (i > 0 && list[i] <= list[i - 1]) {
      throw UserError("{}: moe.layers must ascend without repetition, but {} follows {}",
                      where,
                      list[i],
                      list[i - 1]);
    }
  }
  if (!given(json, "mlp_only_layers") && !given(json, "decoder_sparse_step")) {
    return list;
  }
  const std::vector<int64_t> dense = given(json, "mlp_only_layers")
                                         ? get_ints(json, "mlp_only_layers", where)
                                         : std::vector<int64_t>();
  const int64_t step = bounded(
      get_int(json, "decoder_sparse_step", where, 1), "decoder_sparse_step", where, kMaxSize);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool stock =
        std::find(dense.begin(), dense.end(), layer) == dense.end() && (layer + 1) % step == 0;
    if (stock != std::binary_search(list.begin(), list.end(), layer)) {
      throw UserError(
          "{}: layer {} is {} by mlp_only_layers and decoder_sparse_step, but {} by moe.layers; "
          "make them agree",
          where,
          layer,
          stock ? "MoE" : "dense",
          stock ? "dense" : "MoE");
    }
  }
  return list;
}

// model_type tells stock tools whether they may load the folder: one that they would route wrongly
// must not say qwen2_moe.
void check_model_type(const std::string& type, const MoeConfig& moe, const std::string& where) {
  const std::string expected = moe.router.family == route::Family::kRelu ? "moe_relu"
                               : moe.gate_scale != 1.0                   ? "moe_scaled"
                                                                         : "qwen2_moe";
  if (type != "llama" && type != expected) {
    throw UserError(
        "{}: model_type is {}, but a folder with router {} and gate_scale {} must say {}",
        where,
        type,
        route::to_string(moe.router),
        moe.gate_scale,
        expected);
  }
}

void read_moe_provenance(const Json& moe, const std::string& where, MoeConfig& out) {
  if (given(moe, "router_init")) {
    const Json& init = object_at(moe, "router_init", where);
    out.router_std = finite(
        get_double(init, "std", where + ".router_init", 0.02), "moe.router_init.std", where, true);
    out.router_seed = get_int(init, "seed", where + ".router_init", 0);
  }
  if (given(moe, "source")) {
    const Json& source = object_at(moe, "source", where);
    out.source_name = get_string(source, "name", where + ".source", "");
    out.source_sha256 = get_string(source, "sha256", where + ".source", "");
  }
}

MoeConfig read_moe(const Json& json,
                   const std::string& type,
                   const std::string& where,
                   const ModelConfig& config) {
  const Json& moe = object_at(json, "moe", where);
  const std::string inside = where + ": moe";
  const int64_t format = get_int(moe, "format", inside);
  if (format != 1) {
    throw UserError("{}: moe.format is {}; this version of moe reads format 1", where, format);
  }
  MoeConfig out;
  out.layers = read_moe_layers(json, moe, where, config.layers);
  out.experts = read_size(json, "num_experts", where);
  if (out.experts > kMaxExperts / static_cast<int64_t>(out.layers.size())) {
    throw UserError("{}: {} experts in {} layers are too many; at most {} in all",
                    where,
                    out.experts,
                    out.layers.size(),
                    kMaxExperts);
  }
  out.granularity =
      bounded(get_int(moe, "granularity", inside, 1), "moe.granularity", where, kMaxSize);
  out.expert_width = read_size_or(json,
                                  "moe_intermediate_size",
                                  where,
                                  std::max<int64_t>(1, config.intermediate_size / out.granularity));
  if (!given(moe, "router")) {
    throw UserError("{}: moe.router is missing", where);
  }
  out.router = route::router_from_json(object_at(moe, "router", inside), inside + ".router");
  route::check_router(out.router, out.experts);
  if (out.router.family == route::Family::kTopK &&
      get_int(json, "num_experts_per_tok", where, out.router.k) != out.router.k) {
    throw UserError("{}: num_experts_per_tok is {}, moe.router.k is {}; make them equal",
                    where,
                    get_int(json, "num_experts_per_tok", where),
                    out.router.k);
  }
  out.gate_scale =
      finite(get_double(moe, "gate_scale", inside, 1.0), "moe.gate_scale", where, false);
  out.ep_ranks =
      bounded(get_int(moe, "ep_ranks", inside, out.experts), "moe.ep_ranks", where, kMaxSize);
  if (out.experts % out.ep_ranks != 0) {
    throw UserError(
        "{}: {} experts do not divide over moe.ep_ranks {}", where, out.experts, out.ep_ranks);
  }
  out.lb_coef = finite(get_double(moe, "lb_coef", inside, route::default_lb_coef(out.router)),
                       "moe.lb_coef",
                       where,
                       true);
  out.entropy_coef =
      finite(get_double(moe, "entropy_coef", inside, route::default_entropy_coef(out.router)),
             "moe.entropy_coef",
             where,
             true);
  read_moe_provenance(moe, inside, out);
  check_model_type(type, out, where);
  return out;
}

void check_total_size(const ModelConfig& config, const std::string& where) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double vocabulary = 2.0 * static_cast<double>(config.vocab_size) * hidden;
  const double attention = 2.0 * hidden * static_cast<double>(config.heads + config.kv_heads) *
                           static_cast<double>(config.head_dim);
  const double dense = 3.0 * hidden * static_cast<double>(config.intermediate_size);
  double total =
      vocabulary + static_cast<double>(config.layers) * (attention + dense + 2.0 * hidden);
  if (config.moe) {
    total += static_cast<double>(config.moe->layers.size()) *
             static_cast<double>(config.moe->experts) * hidden *
             (3.0 * static_cast<double>(config.moe->expert_width) + 1.0);
  }
  if (total > kMaxParameters) {
    throw UserError(
        "{}: these sizes make {:.3g} parameters, beyond the limit of 2^50; one of them must be "
        "wrong",
        where,
        total);
  }
}

}  // namespace

bool ModelConfig::is_moe_layer(int64_t layer) const {
  return moe && std::binary_search(moe->layers.begin(), moe->layers.end(), layer);
}

ModelConfig parse_config(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: a config must be a JSON object, not {}", where, json.type_name());
  }
  const std::string type = read_model_type(json, where);
  if (type != "llama" && !given(json, "moe")) {
    throw UserError(
        "{}: a {} model without the \"moe\" object that moe writes; stock qwen2_moe and mixtral "
        "folders are not read "
        "yet, only dense LlamaForCausalLM folders and those that moe upcycle, init and train leave",
        where,
        type);
  }
  refuse_what_is_not_computed(json, where);
  ModelConfig config;
  config.vocab_size = read_size(json, "vocab_size", where);
  config.hidden_size = read_size(json, "hidden_size", where);
  config.intermediate_size = read_size(json, "intermediate_size", where);
  config.layers = read_size(json, "num_hidden_layers", where, kMaxLayers);
  read_attention(json, where, config);
  config.max_position_embeddings = read_size_or(json, "max_position_embeddings", where, 2048);
  config.rms_norm_eps =
      finite(get_double(json, "rms_norm_eps", where, 1e-6), "rms_norm_eps", where, false);
  config.tie_word_embeddings = get_bool(json, "tie_word_embeddings", where, false);
  config.initializer_range =
      finite(get_double(json, "initializer_range", where, 0.02), "initializer_range", where, true);
  config.rope = read_rope(json, where);
  config.dtype = read_dtype(json, where);
  if (given(json, "moe")) {
    config.moe = read_moe(json, type, where, config);
  }
  check_total_size(config, where);
  return config;
}

}  // namespace moe::model
