// Configs of the architectures that other tools write: Mistral, Qwen2, Qwen3, Mixtral, Qwen2-MoE
// and Qwen3-MoE.

#include "core/model/config/architecture.h"
#include "core/model/config/config.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

constexpr Foreign kDense[] = {Foreign::kMistral, Foreign::kQwen2, Foreign::kQwen3};
constexpr const char* kNormalisedTop2 = "top2:cf=inf,st=off,lb=selected";

Json stock(Foreign kind, bool normalised = true) {
  return Json(foreign_config({.kind = kind, .normalised = normalised, .dense_layers = {}}));
}

ModelConfig parsed(const Json& json) { return parse_config(json, "config.json"); }

Json written(const Json& json) { return Json(config_json(parsed(json), json)); }

std::string router_text(const ModelConfig& config) { return route::to_string(config.moe->router); }

// Returns the message of the UserError for `json` with `patch` (null removes a key), or "".
std::string refusal(Json json, const Json& patch) {
  json.merge_patch(patch);
  return user_error_of([&] { parsed(json); });
}

// Returns the config that `moe upcycle` makes of a dense one.
Json upcycled(const Json& json, const std::string& router) {
  ModelConfig config = parsed(json);
  MoeConfig moe;
  moe.layers = {0, 2};
  moe.experts = 4;
  moe.expert_width = config.intermediate_size;
  moe.router = route::parse_router(router);
  moe.ep_ranks = 4;
  config.moe = moe;
  return Json(config_json(config, json));
}

TEST_CASE("a Qwen3-MoE config has its number of experts under either key") {
  Json json = stock(Foreign::kQwen3Moe);
  const ModelConfig config = parsed(json);
  CHECK(config.qk_norm);
  CHECK(config.moe->form == FolderForm::kQwen3Moe);
  CHECK(config.moe->experts == 4);
  CHECK(router_text(config) == kNormalisedTop2);
  const Json out = written(json);
  CHECK(out["model_type"] == "qwen3_moe");
  CHECK(out["moe"]["form"] == "qwen3_moe");
  CHECK(out["num_experts"] == 4);
  CHECK(out["num_local_experts"] == 4);
  CHECK(written(out) == out);

  json.erase("num_local_experts");
  json["num_experts"] = 8;
  CHECK(parsed(json).moe->experts == 8);
  CHECK_THAT(refusal(json, {{"num_local_experts", 4}}),
             contains_text("num_experts is 8, num_local_experts is 4"));
  CHECK_THAT(refusal(out, {{"moe", {{"form", "qwen2_moe"}}}}),
             contains_text("moe.form is 'qwen2_moe'") && contains_text("model_type qwen3_moe"));
}

TEST_CASE("an absent key has the default of transformers for its model_type") {
  struct Case {
    Foreign kind;
    int64_t kv_heads, max_positions;
    double eps, theta;
    int64_t head_dim;
    int64_t experts = 0, expert_width = 0;
    std::string router = {};
  };
  const std::vector<Case> cases = {
      {Foreign::kMistral, 8, 131072, 1e-6, 1e4, 2},
      {Foreign::kQwen2, 32, 32768, 1e-6, 1e4, 2},
      {Foreign::kQwen3, 32, 32768, 1e-6, 1e4, 128},
      {Foreign::kMixtral, 8, 131072, 1e-5, 1e6, 2, 8, 24, kNormalisedTop2},
      {Foreign::kQwen2Moe, 16, 32768, 1e-6, 1e4, 2, 60, 1408, "top4:cf=inf,gate=none,lb=selected"},
      {Foreign::kQwen3Moe, 4, 32768, 1e-6, 1e4, 2, 128, 768, "top8:cf=inf,gate=none,lb=selected"}};
  for (const Case& c : cases) {
    Json json = stock(c.kind);
    INFO(json["model_type"]);
    for (const char* key :
         {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
          "head_dim", "layer_types", "use_sliding_window", "attention_bias", "num_local_experts",
          "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
          "router_aux_loss_coef", "decoder_sparse_step", "mlp_only_layers", "qkv_bias",
          "shared_expert_intermediate_size"}) {
      json.erase(key);
    }
    json["num_attention_heads"] = 32;
    json["hidden_size"] = 64;
    const ModelConfig config = parsed(json);
    CHECK(config.kv_heads == c.kv_heads);
    CHECK(config.max_position_embeddings == c.max_positions);
    CHECK(config.rms_norm_eps == c.eps);
    CHECK(config.rope.theta == c.theta);
    CHECK(config.head_dim == c.head_dim);
    CHECK(config.qkv_bias == (c.kind == Foreign::kQwen2 || c.kind == Foreign::kQwen2Moe));
    REQUIRE(config.moe.has_value() == (c.experts > 0));
    if (config.moe) {
      CHECK(config.moe->experts == c.experts);
      CHECK(config.moe->expert_width == c.expert_width);
      CHECK(config.moe->layers.size() == 3);
      CHECK(config.moe->lb_coef == 0.001);
      CHECK(router_text(config) == c.router);
      CHECK(config.moe->shared_expert_width == (c.kind == Foreign::kQwen2Moe ? 5632 : 0));
    }
  }
}

TEST_CASE("a stock config is written with its own keys, a mixture also with a moe object") {
  for (const Foreign kind : {Foreign::kMistral, Foreign::kQwen2, Foreign::kQwen3, Foreign::kMixtral,
                             Foreign::kQwen2Moe}) {
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
    CHECK(written(out) == out);
    CHECK(out.contains("num_local_experts") == (kind == Foreign::kMixtral));
    CHECK(out.contains("moe_intermediate_size") == (kind == Foreign::kQwen2Moe));
    REQUIRE(out.contains("moe") == is_mixture(kind));
    if (is_mixture(kind)) {
      CHECK(out["moe"]["form"] == json["model_type"]);
      CHECK(out["moe"]["router"]["capacity_factor"].is_null());
      const ModelConfig again = parsed(out);
      CHECK(again.moe->form == parsed(json).moe->form);
      CHECK(again.moe->router == parsed(json).moe->router);
      CHECK(again.moe->lb_coef == 0.02);
    }
  }
}

TEST_CASE("a router is stored in the form of its folder if that form can express it") {
  struct Case {
    std::string router, from_mixtral;  // Qwen2-MoE can express all of these
    bool normalised;
  };
  for (const Case& c :
       {Case{"top1", "mixtral", true}, Case{"top2+ir+fr:cf=1", "mixtral", true},
        Case{"top2:gate=none", "qwen2_moe", false}, Case{"topp:0.4", "qwen2_moe", false}}) {
    INFO(c.router);
    for (const bool mixtral : {true, false}) {
      Json json = stock(mixtral ? Foreign::kMixtral : Foreign::kQwen2Moe);
      if (mixtral && !c.normalised) {
        json["layer_types"] = {"sliding_attention"};  // no key of a Mixtral: not to be inherited
      }
      ModelConfig config = parsed(json);
      config.moe->router = route::parse_router(c.router);
      const Json out = Json(config_json(config, json));
      CHECK(out.contains("layer_types") == !mixtral);
      CHECK(out["model_type"] == (mixtral ? c.from_mixtral : "qwen2_moe"));
      CHECK(out["moe"].contains("form") == (!mixtral || c.normalised));
      CHECK(out.contains("num_local_experts") == (mixtral && c.normalised));
      if (out["model_type"] == "qwen2_moe") {
        CHECK(out["norm_topk_prob"] == c.normalised);
        CHECK(out["qkv_bias"] == !mixtral);
      }
      CHECK(parsed(out).moe->router == config.moe->router);
      CHECK(parsed(out).moe->expert_width == config.moe->expert_width);
    }
  }
}

TEST_CASE("a sliding window applies if a layer has one shorter than the context") {
  const auto applies = [](Foreign kind, Json changes, bool keep_layer_types = false) {
    Json json = stock(kind);  // 3 layers, 128 positions
    if (!keep_layer_types) {
      json.erase("layer_types");
    }
    json.update(changes);
    json["use_sliding_window"] = changes.value("use_sliding_window", true);
    const ModelConfig config = parsed(json);
    CHECK(config.max_position_embeddings == 128);
    CHECK(config.longest_sequence() == (config.sliding_window > 0 ? config.sliding_window : 128));
    return config.sliding_window == 127;
  };
  const Json is_short = {{"sliding_window", 127}, {"max_window_layers", 0}};
  for (const Foreign kind : {Foreign::kQwen2, Foreign::kQwen3}) {
    CHECK(applies(kind, is_short));
    CHECK_FALSE(applies(kind, {{"sliding_window", 128}, {"max_window_layers", 0}}));
    CHECK_FALSE(applies(kind, {{"sliding_window", 127}, {"max_window_layers", 3}}));
    CHECK(applies(kind, {{"sliding_window", 127}, {"max_window_layers", 2}}));
    CHECK_FALSE(applies(kind, {{"max_window_layers", 0}}));           // 4096 if it is absent
    CHECK_FALSE(applies(kind, is_short, /*keep_layer_types=*/true));  // all full_attention
    Json typed = {{"sliding_window", 127},
                  {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}};
    CHECK(applies(kind, typed));
  }
  // Qwen2-MoE: the even layers before max_window_layers. Qwen3-MoE: all.
  CHECK(applies(Foreign::kQwen2Moe, {{"sliding_window", 127}}));
  CHECK_FALSE(applies(Foreign::kQwen2Moe, is_short));
  CHECK(applies(Foreign::kQwen3Moe, {{"sliding_window", 127}, {"max_window_layers", 3}}));
  CHECK_FALSE(applies(Foreign::kQwen3Moe, {{"sliding_window", 128}}));
  // Mistral reads neither use_sliding_window nor the layers. Its window is 4096 if absent.
  CHECK_FALSE(applies(Foreign::kMistral, {{"sliding_window", 128}}));
  CHECK(applies(Foreign::kMistral, {{"use_sliding_window", false}, {"sliding_window", 127}}));
}

TEST_CASE("a mixture is written with a window that applies as its context, without one otherwise") {
  Json json = stock(Foreign::kMistral);
  json["sliding_window"] = 64;
  const Json out = upcycled(json, "top1+ir+fr");
  CHECK(out["max_position_embeddings"] == 64);
  CHECK(out["use_sliding_window"] == false);
  CHECK(parsed(out).longest_sequence() == 64);
  // A dense model and a Mixtral are written as they were read.
  for (const Foreign kind : {Foreign::kMistral, Foreign::kMixtral}) {
    json = stock(kind);
    json["sliding_window"] = 64;
    const Json same = written(json);
    CHECK((same["max_position_embeddings"] == 128 && same["sliding_window"] == 64));
  }
}

TEST_CASE("each dense architecture is upcycled into the stock mixture that can hold it") {
  for (const Foreign kind : kDense) {
    const Json json = stock(kind);
    INFO(json["model_type"]);
    const bool has_norms = kind == Foreign::kQwen3;
    const Json out = upcycled(json, "top2:cf=inf");
    CHECK(out["model_type"] == (has_norms ? "qwen3_moe" : "qwen2_moe"));
    CHECK(out["architectures"][0] == (has_norms ? "Qwen3MoeForCausalLM" : "Qwen2MoeForCausalLM"));
    CHECK(out["num_experts"] == 4);
    CHECK(out.contains("num_local_experts") == has_norms);
    CHECK(out.contains("shared_expert_intermediate_size") == !has_norms);
    CHECK(out.value("qkv_bias", false) == (kind == Foreign::kQwen2));
    CHECK_FALSE(out.contains("use_qk_norm"));
    CHECK_FALSE(out.contains("layer_types"));
    CHECK(out["mlp_only_layers"] == Json{1});
    CHECK_FALSE(out["moe"].contains("form"));
    // Mistral's BOS and EOS are LLaMA's; the others have none by default, and get none.
    CHECK(out["eos_token_id"] == json["eos_token_id"]);
    const ModelConfig again = parsed(out);
    CHECK(again.moe->form == FolderForm::kMoe);
    CHECK(again.qkv_bias == parsed(json).qkv_bias);
    CHECK(again.qk_norm == has_norms);
    CHECK(written(out) == out);
    const Json relu = upcycled(json, "relu:k=1");  // stock tools must refuse it
    CHECK(relu["model_type"] == "moe_relu");
    CHECK(relu.value("use_qk_norm", false) == has_norms);
    CHECK(parsed(relu).qk_norm == has_norms);
    CHECK(parsed(relu).qkv_bias == parsed(json).qkv_bias);
  }
}

TEST_CASE("unsupported or impossible values of stock configs are refused by name") {
  struct Case {
    Json config, patch;
    std::string fact;
  };
  const auto bad_layer_types = "layer_types names attention other than full_attention";
  const Json mistral = stock(Foreign::kMistral), mixtral = stock(Foreign::kMixtral),
             qwen = stock(Foreign::kQwen2Moe), own = written(mixtral);
  std::vector<Case> cases = {
      {mistral, {{"sliding_window", 0}}, "sliding_window is 0"},
      {stock(Foreign::kQwen2), {{"use_qk_norm", true}}, "use_qk_norm is true"},
      {upcycled(stock(Foreign::kQwen3), "relu:k=1"),
       {{"qkv_bias", true}},
       "qkv_bias and use_qk_norm are both true"},
      {mixtral, {{"num_experts_per_tok", 5}}, "asks for 5 experts per token, the layers have 4"},
      {mixtral, {{"router_aux_loss_coef", -1}}, "router_aux_loss_coef is -1"},
      {mixtral, {{"qkv_bias", true}}, "qkv_bias is true"},
      {own, {{"moe", {{"layers", {0, 2}}}}}, "moe.layers names 2 of 3 layers"},
      {own, {{"moe", {{"router", {{"gate_norm", "none"}}}}}}, "must have qwen2_moe"},
      {qwen, {{"layer_types", {"full_attention", "sliding_attention", "x"}}}, bad_layer_types},
      {qwen, {{"decoder_sparse_step", 4}}, "mlp_only_layers and decoder_sparse_step"}};
  for (const Foreign kind : {Foreign::kQwen2, Foreign::kQwen3, Foreign::kQwen3Moe}) {
    cases.push_back({stock(kind), {{"attention_bias", true}}, "attention_bias is true"});
    if (kind != Foreign::kQwen3Moe) {
      cases.push_back({stock(kind),
                       {{"layer_types", {"full_attention", "sliding_attention"}}},
                       bad_layer_types});
    }
    // A window that is not used has no effect.
    CHECK(refusal(stock(kind), {{"sliding_window", 8}, {"max_window_layers", 1}}).empty());
  }
  for (const Case& c : cases) {
    INFO(c.config["model_type"] << " " << c.patch);
    const std::string message = refusal(c.config, c.patch);
    CHECK(message.starts_with("config.json: "));
    CHECK_THAT(message, contains_text(c.fact));
  }
  CHECK(refusal(mixtral, {{"sliding_window", 128}}).empty());
}

}  // namespace
}  // namespace moe::model
