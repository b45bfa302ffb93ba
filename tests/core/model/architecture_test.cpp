// Kin of LLaMA: what their configs say, what an absent key means, what is refused, and the form
// that each is upcycled into.

#include "core/model/config/architecture.h"

#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::contains_text;
using test::Foreign;

constexpr Foreign kDense[] = {Foreign::kMistral, Foreign::kQwen2, Foreign::kQwen3};

Json stock(Foreign kind) { return Json(test::foreign_config({.kind = kind, .dense_layers = {}})); }

ModelConfig parsed(const Json& json) { return parse_config(json, "config.json"); }

std::string refusal(Json json, const Json& patch) {
  json.merge_patch(patch);  // null removes a key
  return test::user_error_of([&] { parsed(json); });
}

// As `moe upcycle` makes of a dense config.
Json upcycled(const Json& json, const std::string& router, double gate_scale = 1.0) {
  ModelConfig config = parsed(json);
  MoeConfig moe;
  moe.layers = {0, 2};
  moe.experts = 4;
  moe.expert_width = config.intermediate_size;
  moe.router = route::parse_router(router);
  moe.gate_scale = gate_scale;
  moe.ep_ranks = 4;
  config.moe = moe;
  return Json(config_json(config, json));
}

TEST_CASE("kin of LLaMA are read with what each of them has", "[model][config]") {
  for (const Foreign kind : kDense) {
    const Json json = stock(kind);
    INFO(json["model_type"]);
    const ModelConfig config = parsed(json);
    CHECK(config.model_type == json["model_type"]);
    CHECK_FALSE(config.moe);
    CHECK(config.qkv_bias == (kind == Foreign::kQwen2));
    CHECK(config.qk_norm == (kind == Foreign::kQwen3));
    CHECK(config.head_dim == 4);
    CHECK(config.rope.theta == (kind == Foreign::kMistral ? 1e4 : 1e6));
  }
}

TEST_CASE("a dense config is written as the architecture that it is of", "[model][config]") {
  for (const Foreign kind : kDense) {
    const Json json = stock(kind);
    const Json out = Json(config_json(parsed(json), json));
    for (const auto& [key, value] : json.items()) {
      INFO(key);
      CHECK((out[key] == value || key == "head_dim"));
    }
    CHECK(out["head_dim"] == 4);
    CHECK_FALSE(out.contains("moe"));
    CHECK(Json(config_json(parsed(out), out)) == out);
  }
}

TEST_CASE("an absent key of kin means what transformers takes", "[model][config]") {
  const auto without_keys = [](Foreign kind) {
    Json json = stock(kind);
    for (const char* key :
         {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
          "head_dim", "layer_types", "use_sliding_window", "attention_bias"}) {
      json.erase(key);
    }
    json["num_attention_heads"] = 32;
    json["hidden_size"] = 64;
    return parsed(json);
  };
  const ModelConfig mistral = without_keys(Foreign::kMistral);
  CHECK(mistral.kv_heads == 8);
  CHECK(mistral.max_position_embeddings == 131072);
  CHECK(mistral.head_dim == 2);
  for (const Foreign kind : {Foreign::kQwen2, Foreign::kQwen3}) {
    const ModelConfig qwen = without_keys(kind);
    CHECK(qwen.kv_heads == 32);
    CHECK(qwen.max_position_embeddings == 32768);
    CHECK(qwen.rms_norm_eps == 1e-6);
    CHECK(qwen.rope.theta == 1e4);
    CHECK(qwen.head_dim == (kind == Foreign::kQwen3 ? 128 : 2));
  }
  Json json = stock(Foreign::kQwen3Moe);
  for (const char* key : {"num_key_value_heads", "max_position_embeddings", "num_local_experts",
                          "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}) {
    json.erase(key);
  }
  const ModelConfig moe = parsed(json);
  CHECK(moe.kv_heads == 4);
  CHECK(moe.max_position_embeddings == 32768);
  CHECK(moe.moe->experts == 128);
  CHECK(moe.moe->expert_width == 768);
  CHECK(route::to_string(moe.moe->router) == "top8:cf=inf,gate=none,lb=selected");
}

TEST_CASE("a window counts where a layer has it that is shorter than the context",
          "[model][config]") {
  const auto counts = [](Foreign kind, Json changes, bool by_types = false) {
    Json json = stock(kind);  // 3 layers, 128 positions
    if (!by_types) {
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
    CHECK(counts(kind, is_short));
    CHECK_FALSE(counts(kind, {{"sliding_window", 128}, {"max_window_layers", 0}}));
    CHECK_FALSE(counts(kind, {{"sliding_window", nullptr}, {"max_window_layers", 0}}));
    CHECK_FALSE(counts(kind, {{"sliding_window", 127}}));  // from layer 28 on
    CHECK_FALSE(counts(kind, {{"sliding_window", 127}, {"max_window_layers", 3}}));
    CHECK(counts(kind, {{"sliding_window", 127}, {"max_window_layers", 2}}));
    CHECK_FALSE(counts(kind, {{"max_window_layers", 0}}));   // 4096 where it is absent
    CHECK_FALSE(counts(kind, is_short, /*by_types=*/true));  // which name no windowed layer
    Json typed = {{"sliding_window", 127},
                  {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}};
    CHECK(counts(kind, typed));
    typed["sliding_window"] = 128;
    CHECK_FALSE(counts(kind, typed));
  }
  // Qwen2-MoE: the even layers before max_window_layers. Qwen3-MoE: all.
  CHECK(counts(Foreign::kQwen2Moe, {{"sliding_window", 127}}));
  CHECK_FALSE(counts(Foreign::kQwen2Moe, is_short));
  CHECK(counts(Foreign::kQwen3Moe, {{"sliding_window", 127}, {"max_window_layers", 3}}));
  CHECK_FALSE(counts(Foreign::kQwen3Moe, {{"sliding_window", 128}}));
  // Mistral does not read the key of Qwen, nor which layers. Absent, its window is 4096.
  CHECK_FALSE(counts(Foreign::kMistral, {{"sliding_window", 128}}));
  CHECK(counts(Foreign::kMistral, {{"use_sliding_window", false}, {"sliding_window", 127}}));
  Json absent = stock(Foreign::kMistral);
  absent.erase("sliding_window");
  CHECK(parsed(absent).sliding_window == 0);
  absent["max_position_embeddings"] = 4097;
  CHECK(parsed(absent).sliding_window == 4096);
  CHECK(refusal(absent, {{"sliding_window", 0}}) ==
        "config.json: sliding_window is 0; it must be at least 1, or null for none");
}

TEST_CASE("a mixture is written without the window that it does not need", "[model][config]") {
  Json json = stock(Foreign::kQwen2Moe);
  json["use_sliding_window"] = true;
  json["sliding_window"] = 128;
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  const Json out = config_json(parsed(json), json);
  CHECK(out["use_sliding_window"] == false);
  CHECK_FALSE(out.contains("layer_types"));
  CHECK(parsed(out).layers == 3);
}

TEST_CASE("the context of a mixture ends where its parent's window does", "[model][config]") {
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
    const Json same = config_json(parsed(json), json);
    CHECK((same["max_position_embeddings"] == 128 && same["sliding_window"] == 64));
  }
}

TEST_CASE("what kin of LLaMA may not say is refused by name", "[model][config]") {
  for (const Foreign kind : {Foreign::kQwen2, Foreign::kQwen3, Foreign::kQwen3Moe}) {
    INFO(stock(kind)["model_type"]);
    // A window that is not used says nothing.
    CHECK(refusal(stock(kind), {{"sliding_window", 8}, {"max_window_layers", 1}}).empty());
    CHECK(refusal(stock(kind), {{"attention_bias", true}}) ==
          "config.json: attention_bias is true; such models are not supported, only those without "
          "it");
    if (kind != Foreign::kQwen3Moe) {
      CHECK(refusal(stock(kind), {{"layer_types", {"full_attention", "sliding_attention"}}}) ==
            "config.json: layer_types names attention other than full_attention; not supported");
    }
  }
  CHECK(refusal(stock(Foreign::kQwen2), {{"use_qk_norm", true}}) ==
        "config.json: use_qk_norm is true; such models are not supported, only those without it");
  CHECK(refusal(stock(Foreign::kMistral), {{"qkv_bias", true}}) ==
        "config.json: qkv_bias is true; such models are not supported, only those without it");
}

TEST_CASE("each is upcycled into the stock mixture that holds it", "[model][config]") {
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
    CHECK(Json(config_json(again, out)) == out);
  }
}

TEST_CASE("architectures of our own say what stock ones have by their name", "[model][config]") {
  for (const Foreign kind : kDense) {
    const Json json = stock(kind);
    for (const auto& [out, type] : {std::pair{upcycled(json, "relu:k=1"), "moe_relu"},
                                    std::pair{upcycled(json, "top2:bias=0.001"), "moe_biased"},
                                    std::pair{upcycled(json, "top2:cf=inf", 1.5), "moe_scaled"}}) {
      CHECK(out["model_type"] == type);
      CHECK(out.value("use_qk_norm", false) == (kind == Foreign::kQwen3));
      const ModelConfig again = parsed(out);
      CHECK(again.qk_norm == (kind == Foreign::kQwen3));
      CHECK(again.qkv_bias == (kind == Foreign::kQwen2));
      // Trained with a router that stock tools know, it gets their name again.
      ModelConfig stays = again;
      stays.moe->router = route::parse_router("top1");
      stays.moe->gate_scale = 1.0;
      const Json known = Json(config_json(stays, out));
      CHECK(known["model_type"] == (kind == Foreign::kQwen3 ? "qwen3_moe" : "qwen2_moe"));
      CHECK_FALSE(known.contains("use_qk_norm"));
      CHECK(parsed(known).qk_norm == again.qk_norm);
    }
  }
  const Json relu = upcycled(stock(Foreign::kQwen3), "relu:k=1");
  CHECK(refusal(relu, {{"qkv_bias", true}}) ==
        "config.json: qkv_bias and use_qk_norm are both true, which no stock model has: set one");
}

TEST_CASE("a Qwen3-MoE says its experts by either key", "[model][config]") {
  Json json = stock(Foreign::kQwen3Moe);
  const ModelConfig config = parsed(json);
  CHECK(config.qk_norm);
  CHECK(config.moe->form == FolderForm::kQwen3Moe);
  CHECK(config.moe->experts == 4);
  CHECK(route::to_string(config.moe->router) == "top2:cf=inf,st=off,lb=selected");
  const Json out = Json(config_json(config, json));
  CHECK(out["model_type"] == "qwen3_moe");
  CHECK(out["moe"]["form"] == "qwen3_moe");
  CHECK(out["num_experts"] == 4);
  CHECK(out["num_local_experts"] == 4);
  CHECK(Json(config_json(parsed(out), out)) == out);

  json.erase("num_local_experts");
  json["num_experts"] = 8;
  CHECK(parsed(json).moe->experts == 8);
  CHECK(refusal(json, {{"num_local_experts", 4}}) ==
        "config.json: num_experts is 8, num_local_experts is 4; make them equal");
  CHECK(refusal(out, {{"moe", {{"form", "qwen2_moe"}}}}) ==
        "config.json: moe.form is 'qwen2_moe', which a folder with model_type qwen3_moe cannot "
        "have; known are moe, and qwen2_moe in a qwen2_moe folder, qwen3_moe in a qwen3_moe "
        "folder");
}

}  // namespace
}  // namespace moe::model
