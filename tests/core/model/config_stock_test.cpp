// Mixtral and Qwen2-MoE configs as other tools write them.

#include "core/model/config/config.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::Foreign;

Json stock(Foreign kind, bool normalised = true) {
  return Json(test::foreign_config({.kind = kind, .normalised = normalised, .dense_layers = {}}));
}

ModelConfig parsed(const Json& json) { return parse_config(json, "config.json"); }

Json written(const Json& json) { return Json(config_json(parsed(json), json)); }

std::string refusal(Json json, const Json& patch) {
  json.merge_patch(patch);  // null removes a key
  return test::user_error_of([&] { parsed(json); });
}

TEST_CASE("a Mixtral config is read as a mixture in every layer", "[model][config]") {
  const ModelConfig config = parsed(stock(Foreign::kMixtral));
  CHECK(config.head_dim == 4);  // null: hidden_size / heads
  CHECK(config.rope.theta == 1e6);
  CHECK_FALSE(config.qkv_bias);
  REQUIRE(config.moe);
  CHECK(config.moe->form == FolderForm::kMixtral);
  CHECK(config.moe->layers == std::vector<int64_t>{0, 1, 2});
  CHECK(config.moe->experts == 4);
  CHECK(config.moe->expert_width == 24);
  CHECK(config.moe->ep_ranks == 4);
  CHECK(config.moe->lb_coef == 0.02);
  CHECK(route::to_string(config.moe->router) == "top2:cf=inf,st=off,lb=selected");
}

TEST_CASE("a Qwen2-MoE config is read with its gate, its biases and its layers",
          "[model][config]") {
  Json json = stock(Foreign::kQwen2Moe, false);
  ModelConfig config = parsed(json);
  CHECK(config.qkv_bias);
  REQUIRE(config.moe);
  CHECK(config.moe->form == FolderForm::kQwen2Moe);
  CHECK(config.moe->expert_width == 12);
  CHECK(config.moe->layers == std::vector<int64_t>{0, 1, 2});
  CHECK(route::to_string(config.moe->router) == "top2:cf=inf,gate=none,lb=selected");
  json["norm_topk_prob"] = true;
  json["decoder_sparse_step"] = 2;
  config = parsed(json);
  CHECK(config.moe->layers == std::vector<int64_t>{1});
  CHECK(route::to_string(config.moe->router) == "top2:cf=inf,st=off,lb=selected");
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = {2, 0};
  CHECK(parsed(json).moe->layers == std::vector<int64_t>{1});
  json["mlp_only_layers"] = nullptr;
  CHECK(parsed(json).moe->layers == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("an absent key means what transformers takes for that model_type", "[model][config]") {
  Json json = stock(Foreign::kMixtral);
  for (const char* key :
       {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
        "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef", "sliding_window"}) {
    json.erase(key);
  }
  json["num_attention_heads"] = 8;
  ModelConfig config = parsed(json);
  CHECK(config.kv_heads == 8);
  CHECK(config.max_position_embeddings == 131072);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.moe->experts == 8);
  CHECK(config.moe->router.k == 2);
  CHECK(config.moe->lb_coef == 0.001);
  json["num_attention_heads"] = 4;
  json["num_key_value_heads"] = nullptr;  // as many as query heads
  CHECK(parsed(json).kv_heads == 4);

  json = stock(Foreign::kQwen2Moe);
  for (const char* key :
       {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
        "decoder_sparse_step", "mlp_only_layers", "qkv_bias", "layer_types"}) {
    json.erase(key);
  }
  json["num_attention_heads"] = 16;
  json["head_dim"] = 4;
  config = parsed(json);
  CHECK(config.kv_heads == 16);
  CHECK(config.max_position_embeddings == 32768);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.rope.theta == 10000.0);
  CHECK(config.qkv_bias);
  CHECK(config.moe->experts == 60);
  CHECK(config.moe->expert_width == 1408);
  CHECK(config.moe->layers.size() == 3);
  CHECK(route::to_string(config.moe->router) == "top4:cf=inf,gate=none,lb=selected");
}

TEST_CASE("a stock config is written with its own keys and one object more", "[model][config]") {
  for (const Foreign kind : {Foreign::kMixtral, Foreign::kQwen2Moe}) {
    Json json = stock(kind);
    if (kind == Foreign::kQwen2Moe) {
      json["decoder_sparse_step"] = 2;
    }
    const Json out = written(json);
    for (const auto& [key, value] : json.items()) {
      INFO(key);
      CHECK((out[key] == value || key == "head_dim"));
    }
    CHECK(out["head_dim"] == 4);
    CHECK(out["moe"]["form"] == json["model_type"]);
    CHECK(out["moe"]["router"]["capacity_factor"].is_null());
    CHECK(out.contains("num_local_experts") == (kind == Foreign::kMixtral));
    CHECK(out.contains("moe_intermediate_size") == (kind == Foreign::kQwen2Moe));
    const ModelConfig again = parsed(out);
    CHECK(again.moe->form == parsed(json).moe->form);
    CHECK(again.moe->router == parsed(json).moe->router);
    CHECK(again.moe->lb_coef == 0.02);
    CHECK(written(out) == out);
  }
}

TEST_CASE("a router is stored in the folder's own form where that has words for it",
          "[model][config]") {
  struct Case {
    std::string router, from_mixtral;  // Qwen2-MoE has words for all of these
    bool normalised;
  };
  for (const Case& c :
       {Case{"top1", "mixtral", true}, Case{"top2+ir+fr:cf=1", "mixtral", true},
        Case{"top2:gate=none", "qwen2_moe", false}, Case{"topp:0.4", "qwen2_moe", false}}) {
    INFO(c.router);
    for (const Foreign kind : {Foreign::kMixtral, Foreign::kQwen2Moe}) {
      Json json = stock(kind);
      if (kind == Foreign::kMixtral && !c.normalised) {
        json["layer_types"] = {"sliding_attention"};  // no key of a Mixtral: not to be inherited
      }
      ModelConfig config = parsed(json);
      config.moe->router = route::parse_router(c.router);
      const Json out = Json(config_json(config, json));
      const bool mixtral = kind == Foreign::kMixtral;
      CHECK(out.contains("layer_types") == !mixtral);
      CHECK(out["model_type"] == (mixtral ? c.from_mixtral : "qwen2_moe"));
      CHECK(out["moe"].contains("form") == (!mixtral || c.normalised));
      CHECK(out.contains("num_local_experts") == (mixtral && c.normalised));
      if (out["model_type"] == "qwen2_moe") {
        CHECK(out["norm_topk_prob"] == c.normalised);
        CHECK(out["qkv_bias"] == !mixtral);
      }
      const ModelConfig again = parsed(out);
      CHECK(again.moe->router == config.moe->router);
      CHECK(again.moe->expert_width == config.moe->expert_width);
    }
  }
}

TEST_CASE("what a Mixtral may not say is refused by name", "[model][config]") {
  const Json json = stock(Foreign::kMixtral);
  CHECK(refusal(json, {{"sliding_window", 128}}).empty());
  CHECK(refusal(json, {{"sliding_window", -1}}) ==
        "config.json: sliding_window is -1; it must be at least 1, or null for none");
  CHECK(refusal(json, {{"num_experts_per_tok", 5}}) ==
        "config.json: router 'top5:cf=inf,st=off,lb=selected' asks for 5 experts per token, the "
        "layers have 4: give a smaller k or more experts");
  CHECK(refusal(json, {{"num_local_experts", 0}}) ==
        "config.json: num_local_experts is 0; it must be between 1 and 2147483648");
  CHECK(refusal(json, {{"num_local_experts", 100000}}) ==
        "config.json: 100000 experts in 3 layers are too many; at most 262144 in all");
  CHECK(refusal(json, {{"router_aux_loss_coef", -1}}) ==
        "config.json: router_aux_loss_coef is -1; it must be zero or a positive number");
  CHECK(refusal(json, {{"router_jitter_noise", -1}}) ==
        "config.json: router_jitter_noise is -1; it must be zero or a positive number");
  CHECK(refusal(json, {{"qkv_bias", true}}) ==
        "config.json: qkv_bias is true; such models are not supported, only those without it");
  Json jitter = json;
  jitter["router_jitter_noise"] = 0.1;
  CHECK(parsed(jitter).moe->router_jitter == 0.1);

  const Json own = written(json);
  CHECK(refusal(own, {{"moe", {{"layers", {0, 2}}}}}) ==
        "config.json: moe.layers names 2 of 3 layers, but every layer of a mixtral is MoE");
  CHECK(refusal(own, {{"moe", {{"router", {{"gate_norm", "none"}}}}}}) ==
        "config.json: model_type is mixtral, but a folder with router "
        "top2:cf=inf,gate=none,st=off,lb=selected and gate_scale 1 must say qwen2_moe");
}

TEST_CASE("the width of a shared expert is read, with what its absence means, and written",
          "[model][config]") {
  Json json = stock(Foreign::kQwen2Moe);
  CHECK(parsed(json).moe->shared_expert_width == 0);
  json["shared_expert_intermediate_size"] = 20;
  const ModelConfig config = parsed(json);
  CHECK(config.moe->shared_expert_width == 20);
  const Json own = written(json);
  CHECK(own["shared_expert_intermediate_size"] == 20);
  CHECK(own["model_type"] == "qwen2_moe");
  CHECK(parsed(own).moe->shared_expert_width == 20);
  json.erase("shared_expert_intermediate_size");
  CHECK(parsed(json).moe->shared_expert_width == 5632);  // transformers' default
  // Stock mixtures that know no shared expert do not read the key.
  for (const auto kind : {Foreign::kMixtral, Foreign::kQwen3Moe}) {
    Json other = stock(kind);
    other["shared_expert_intermediate_size"] = 20;
    CHECK(parsed(other).moe->shared_expert_width == 0);
  }
}

TEST_CASE("what a Qwen2-MoE may not say is refused by name", "[model][config]") {
  const Json json = stock(Foreign::kQwen2Moe);
  CHECK(refusal(json, {{"shared_expert_intermediate_size", -1}}) ==
        "config.json: shared_expert_intermediate_size is -1; it must be between 0, which is none, "
        "and 2147483648");
  const std::string window =
      "config.json: layer_types names attention other than full_attention; not supported";
  CHECK(refusal(json, {{"layer_types", {"full_attention", "sliding_attention", "x"}}}) == window);
  CHECK(refusal(json, {{"layer_types", 3}}) == window);
  CHECK(refusal(json, {{"decoder_sparse_step", 4}}) ==
        "config.json: no layer is a mixture by mlp_only_layers and decoder_sparse_step; a dense "
        "folder has the model_type of a dense model, such as llama or qwen3");
  CHECK(refusal(json, {{"decoder_sparse_step", 0}}) ==
        "config.json: decoder_sparse_step is 0; it must be between 1 and 2147483648");
}

}  // namespace
}  // namespace moe::model
