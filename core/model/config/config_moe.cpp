// The "moe" object of config.json, and that the keys that stock tools read beside it say the same.

#include <algorithm>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"
#include "core/route/router.h"

namespace moe::model {
namespace {

// The layer list of "moe".
std::vector<int64_t> read_moe_layers(const Json& moe, const std::string& where, int64_t layers) {
  const std::vector<int64_t> list = get_ints(moe, "layers", where + ": moe");
  if (list.empty()) {
    throw UserError("{}: moe.layers is empty; a folder without MoE layers has no \"moe\" object",
                    where);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= layers) {
      throw UserError("{}: moe.layers names layer {}; the model has layers 0 to {}", where, list[i],
                      layers - 1);
    }
    if (i > 0 && list[i] <= list[i - 1]) {
      throw UserError("{}: moe.layers must ascend without repetition, but {} follows {}", where,
                      list[i], list[i - 1]);
    }
  }
  return list;
}

// What stock tools take for mixtures must be what we take for them.
void check_stock_layers(const Json& json, const Architecture& architecture,
                        const std::string& where, int64_t layers,
                        const std::vector<int64_t>& list) {
  const bool is_mixtral = architecture.form == FolderForm::kMixtral;
  if (is_mixtral && static_cast<int64_t>(list.size()) != layers) {
    throw UserError("{}: moe.layers names {} of {} layers, but every layer of a mixtral is MoE",
                    where, list.size(), layers);
  }
  if (is_mixtral || (!given(json, "mlp_only_layers") && !given(json, "decoder_sparse_step"))) {
    return;
  }
  const std::vector<int64_t> stock_list = stock_moe_layers(json, where, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool stock = std::binary_search(stock_list.begin(), stock_list.end(), layer);
    if (stock != std::binary_search(list.begin(), list.end(), layer)) {
      throw UserError(
          "{}: layer {} is {} by mlp_only_layers and decoder_sparse_step, but {} by moe.layers; "
          "make them agree",
          where, layer, stock ? "MoE" : "dense", stock ? "dense" : "MoE");
    }
  }
}

// A mixtral folder spells itself as a Mixtral; a qwen2_moe or qwen3_moe folder is ours unless it
// says that it came from elsewhere.
FolderForm read_form(const Json& moe, const Architecture& architecture, const std::string& where) {
  if (architecture.form == FolderForm::kMixtral) {
    return FolderForm::kMixtral;
  }
  const std::string form = get_string(moe, "form", where + ": moe", "moe");
  if (form == "moe") {
    return FolderForm::kMoe;
  }
  if (architecture.form == FolderForm::kMoe || form != architecture.model_type) {
    throw UserError(
        "{}: moe.form is '{}', which a folder with model_type {} cannot have; known are moe, and "
        "qwen2_moe in a qwen2_moe folder, qwen3_moe in a qwen3_moe folder",
        where, form, architecture.model_type);
  }
  return architecture.form;
}

// model_type tells stock tools whether they may load the folder: one that they would route wrongly
// must not say the name of a stock mixture.
void check_model_type(const std::string& type, const MoeConfig& moe, bool qk_norm,
                      const std::string& where) {
  const std::string& expected = written_architecture(moe, qk_norm).model_type;
  if (type != "llama" && type != expected) {
    throw UserError(
        "{}: model_type is {}, but a folder with router {} and gate_scale {} must say {}", where,
        type, route::to_string(moe.router), moe.gate_scale, expected);
  }
}

// gate_scale, ranks and coefficients; the router and the experts are known.
void read_moe_numbers(const Json& moe, const std::string& where, MoeConfig& out) {
  const std::string inside = where + ": moe";
  out.gate_scale =
      finite(get_double(moe, "gate_scale", inside, 1.0), "moe.gate_scale", where, false);
  out.ep_ranks =
      bounded(get_int(moe, "ep_ranks", inside, out.experts), "moe.ep_ranks", where, kMaxSize);
  if (out.experts % out.ep_ranks != 0) {
    throw UserError("{}: {} experts do not divide over moe.ep_ranks {}", where, out.experts,
                    out.ep_ranks);
  }
  out.lb_coef = finite(get_double(moe, "lb_coef", inside, route::default_lb_coef(out.router)),
                       "moe.lb_coef", where, true);
  out.entropy_coef =
      finite(get_double(moe, "entropy_coef", inside, route::default_entropy_coef(out.router)),
             "moe.entropy_coef", where, true);
  out.z_coef = finite(get_double(moe, "z_coef", inside, 0), "moe.z_coef", where, true);
  out.seq_lb_coef =
      finite(get_double(moe, "seq_lb_coef", inside, 0), "moe.seq_lb_coef", where, true);
  if (given(moe, "lambda")) {
    out.lambda = finite(get_double(moe, "lambda", inside), "moe.lambda", where, true);
  }
}

void read_moe_provenance(const Json& moe, const std::string& where, MoeConfig& out) {
  if (given(moe, "router_init")) {
    const Json& init = object_at(moe, "router_init", where);
    out.router_std = finite(get_double(init, "std", where + ".router_init", 0.02),
                            "moe.router_init.std", where, true);
    out.router_seed = get_int(init, "seed", where + ".router_init", 0);
  }
  if (given(moe, "source")) {
    const Json& source = object_at(moe, "source", where);
    out.source_name = get_string(source, "name", where + ".source", "");
    out.source_sha256 = get_string(source, "sha256", where + ".source", "");
  }
}

}  // namespace

MoeConfig read_moe(const Json& json, const Architecture& architecture, const std::string& where,
                   const ModelConfig& config) {
  const Json& moe = object_at(json, "moe", where);
  const std::string inside = where + ": moe";
  const int64_t format = get_int(moe, "format", inside);
  if (format != 1) {
    throw UserError("{}: moe.format is {}; this version of moe reads format 1", where, format);
  }
  MoeConfig out;
  out.form = read_form(moe, architecture, where);
  out.layers = read_moe_layers(moe, where, config.layers);
  check_stock_layers(json, architecture, where, config.layers, out.layers);
  out.experts = read_experts(json, architecture, where, out.layers.size());
  out.granularity =
      bounded(get_int(moe, "granularity", inside, 1), "moe.granularity", where, kMaxSize);
  out.expert_width =
      out.form == FolderForm::kMixtral
          ? config.intermediate_size
          : read_size_or(json, "moe_intermediate_size", where,
                         std::max<int64_t>(1, config.intermediate_size / out.granularity));
  if (!given(moe, "router")) {
    throw UserError("{}: moe.router is missing", where);
  }
  out.router = route::router_from_json(object_at(moe, "router", inside), inside + ".router");
  check_stored_router(out, where);
  if (out.router.family->stock_experts_are_k &&
      get_int(json, "num_experts_per_tok", where, out.router.k) != out.router.k) {
    throw UserError("{}: num_experts_per_tok is {}, moe.router.k is {}; make them equal", where,
                    get_int(json, "num_experts_per_tok", where), out.router.k);
  }
  read_moe_numbers(moe, where, out);
  read_moe_provenance(moe, inside, out);
  check_model_type(architecture.model_type, out, config.qk_norm, where);
  return out;
}

}  // namespace moe::model
