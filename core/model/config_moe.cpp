// The "moe" object of config.json, and that the keys that stock tools read beside it say the same.

#include <algorithm>

#include "core/base/error.h"
#include "core/model/config_fields.h"

namespace moe::model {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 18;  // over all layers; each is three tensors by name

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

// What the auxiliary losses were multiplied by.
void read_coefficients(const Json& moe,
                       const std::string& inside,
                       const std::string& where,
                       MoeConfig& out) {
  out.lb_coef = finite(get_double(moe, "lb_coef", inside, route::default_lb_coef(out.router)),
                       "moe.lb_coef",
                       where,
                       true);
  out.entropy_coef =
      finite(get_double(moe, "entropy_coef", inside, route::default_entropy_coef(out.router)),
             "moe.entropy_coef",
             where,
             true);
  if (given(moe, "lambda")) {
    out.lambda = finite(get_double(moe, "lambda", inside), "moe.lambda", where, true);
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

}  // namespace

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
  try {
    route::check_router(out.router, out.experts);
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
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
  read_coefficients(moe, inside, where, out);
  read_moe_provenance(moe, inside, out);
  check_model_type(type, out, where);
  return out;
}

}  // namespace moe::model
