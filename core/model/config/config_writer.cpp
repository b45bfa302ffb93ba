// Writes config.json: the keys of the parent, overridden by those of the model. A mixture is a
// valid qwen2_moe, qwen3_moe or mixtral config, so that stock tools load it (core/io/formats.md).
// If they would compute something else, model_type is a name that they refuse. RoPE and dtype are
// written in both spellings, for transformers before and since version 5.

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/model/config/architecture.h"
#include "core/model/config/config.h"

namespace moe::model {
namespace {

// Returns a RoPE dictionary, with the other keys of the dictionary `key` of the parent.
OrderedJson rope_dictionary(const RopeConfig& rope, const Json& parent, const char* key) {
  OrderedJson out = OrderedJson::object();
  out["rope_type"] = kRopeTypeNames[static_cast<size_t>(rope.type)];
  if (rope.type != RopeType::kDefault) {
    out["factor"] = rope.factor;
  }
  if (rope.type == RopeType::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.original_max_position_embeddings > 0) {
    out["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  const auto old = parent.find(key);
  if (old != parent.end() && old->is_object()) {
    for (const auto& [name, value] : old->items()) {
      if (!out.contains(name) && name != "type") {
        out[name] = value;
      }
    }
  }
  return out;
}

void set_rope(const RopeConfig& rope, const Json& parent, OrderedJson& out) {
  out["rope_theta"] = rope.theta;
  out["rope_scaling"] = nullptr;
  if (rope.type != RopeType::kDefault) {
    out["rope_scaling"] = rope_dictionary(rope, parent, "rope_scaling");
    out["rope_scaling"]["type"] = kRopeTypeNames[static_cast<size_t>(rope.type)];
  }
  out["rope_parameters"] = rope_dictionary(rope, parent, "rope_parameters");
  out["rope_parameters"]["rope_theta"] = rope.theta;
}

void set_llama_keys(const ModelConfig& config, const Json& parent, OrderedJson& out) {
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["hidden_act"] = "silu";
  out["max_position_embeddings"] = config.max_position_embeddings;
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["initializer_range"] = config.initializer_range;
  out["torch_dtype"] = config.dtype;
  out["dtype"] = config.dtype;
  set_rope(config.rope, parent, out);
  if (find_architecture(config.model_type).has_llama_tokens) {
    out.emplace("bos_token_id", 1);  // defaults of LlamaConfig that qwen2_moe does not share
    out.emplace("eos_token_id", 2);
  }
}

// Writes which layers are MoE layers. Keeps the keys of the parent if they name the same layers.
void set_qwen_moe_layers(const ModelConfig& config, OrderedJson& out) {
  const Json stock = {{"mlp_only_layers", out.value("mlp_only_layers", OrderedJson())},
                      {"decoder_sparse_step", out.value("decoder_sparse_step", OrderedJson())}};
  if (config.moe->form != FolderForm::kMoe && config.moe->form != FolderForm::kMixtral &&
      stock_moe_layers(stock, "the parent's config", config.layers) == config.moe->layers) {
    return;
  }
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = OrderedJson::array();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_moe_layer(layer)) {
      out["mlp_only_layers"].push_back(layer);
    }
  }
}

// Writes the keys that differ between Qwen2-MoE and Qwen3-MoE. use_qk_norm is a key of the
// project's own architectures: the norms are fixed in the stock ones.
void set_qwen_moe_attention(const ModelConfig& config, const Architecture& architecture,
                            OrderedJson& out) {
  out.erase("use_qk_norm");
  if (architecture.form == FolderForm::kQwen3Moe) {
    out["num_local_experts"] = config.moe->experts;
    out.erase("shared_expert_intermediate_size");
    out.erase("qkv_bias");
    return;
  }
  out["shared_expert_intermediate_size"] = config.moe->shared_expert_width;
  out["qkv_bias"] = config.qkv_bias;
  if (config.qk_norm) {
    out["use_qk_norm"] = true;
  }
}

void set_qwen_moe_keys(const ModelConfig& config, const Architecture& architecture,
                       OrderedJson& out) {
  const MoeConfig& moe = *config.moe;
  const bool is_own = written_form(moe) == FolderForm::kMoe;
  out["num_experts"] = moe.experts;
  out["num_experts_per_tok"] = moe.router.family->hf_experts_per_token(moe.router, moe.experts);
  out["norm_topk_prob"] = route::weights_sum_to_one(moe.router);
  set_qwen_moe_layers(config, out);
  out["moe_intermediate_size"] = moe.expert_width;
  out["use_sliding_window"] = false;
  out["max_position_embeddings"] = config.longest_sequence();
  if (is_own) {
    out["output_router_logits"] = false;
  }
  const OrderedJson types = out.value("layer_types", OrderedJson());
  if (is_own || std::find(types.begin(), types.end(), "sliding_attention") != types.end()) {
    out.erase("layer_types");  // read by qwen2_moe, not by LLaMA and Mixtral
  }
  out["router_aux_loss_coef"] = moe.lb_coef;
  if (moe.form == FolderForm::kMixtral) {  // a Mixtral that cannot be written as one
    for (const char* key : {"num_local_experts", "router_jitter_noise", "sliding_window"}) {
      out.erase(key);
    }
  }
  set_qwen_moe_attention(config, architecture, out);
}

void set_own_moe_object(const MoeConfig& moe, OrderedJson& out) {
  OrderedJson own = out.value("moe", OrderedJson());  // keeps keys that this version does not know
  if (!own.is_object()) {
    own = OrderedJson::object();
  }
  own["format"] = 1;
  own.erase("form");
  if (written_form(moe) != FolderForm::kMoe) {
    own["form"] = stock_architecture(written_form(moe), /*qk_norm=*/false).model_type;
  }
  own["layers"] = moe.layers;
  own["granularity"] = moe.granularity;
  own["router"] = route::to_json(moe.router);
  own["gate_scale"] = moe.gate_scale;
  own["ep_ranks"] = moe.ep_ranks;
  own["lb_coef"] = moe.lb_coef;
  own["entropy_coef"] = moe.entropy_coef;
  const auto set_or_erase = [&](const char* key, bool is_set, double value) {
    own.erase(key);
    if (is_set) {
      own[key] = value;
    }
  };
  set_or_erase("z_coef", moe.z_coef != 0, moe.z_coef);
  set_or_erase("seq_lb_coef", moe.seq_lb_coef != 0, moe.seq_lb_coef);
  set_or_erase("lambda", moe.lambda.has_value(), moe.lambda.value_or(0));
  own["router_init"] = {{"std", moe.router_std}, {"seed", moe.router_seed}};
  own["source"] = nullptr;
  if (!moe.source_name.empty() || !moe.source_sha256.empty()) {
    own["source"] = {{"name", moe.source_name}, {"sha256", moe.source_sha256}};
  }
  out["moe"] = std::move(own);
}

}  // namespace

FolderForm written_form(const MoeConfig& moe) {
  if (!route::own_architecture(moe.router).model_type.empty() || moe.gate_scale != 1.0) {
    return FolderForm::kMoe;
  }
  return moe.form == FolderForm::kMixtral && !route::weights_sum_to_one(moe.router)
             ? FolderForm::kMoe
             : moe.form;
}

FolderForm written_form(const ModelConfig& config) {
  return config.moe ? written_form(*config.moe) : FolderForm::kMoe;
}

const Architecture& written_architecture(const MoeConfig& moe, bool qk_norm) {
  if (const auto own = route::own_architecture(moe.router).model_type; !own.empty()) {
    return find_architecture(own);
  }
  return moe.gate_scale != 1.0 ? find_architecture("moe_scaled")
                               : stock_architecture(written_form(moe), qk_norm);
}

OrderedJson config_json(const ModelConfig& config, const Json& parent) {
  const Architecture& architecture = config.moe ? written_architecture(*config.moe, config.qk_norm)
                                                : find_architecture(config.model_type);
  OrderedJson out = {{"architectures", nullptr}, {"model_type", nullptr}};
  if (parent.is_object()) {
    for (const auto& [key, value] : parent.items()) {
      out[key] = value;
    }
  }
  out["architectures"] = {architecture.name};
  out["model_type"] = architecture.model_type;
  set_llama_keys(config, parent, out);
  if (!config.moe) {
    out.erase("moe");
    return out;
  }
  const MoeConfig& moe = *config.moe;
  if (architecture.form == FolderForm::kMixtral) {
    out["num_local_experts"] = moe.experts;
    out["num_experts_per_tok"] = moe.router.family->hf_experts_per_token(moe.router, moe.experts);
    out["intermediate_size"] = moe.expert_width;
    out["router_aux_loss_coef"] = moe.lb_coef;
  } else {
    set_qwen_moe_keys(config, architecture, out);
  }
  set_own_moe_object(moe, out);
  return out;
}

}  // namespace moe::model
