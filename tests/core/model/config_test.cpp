#include "core/model/config/config.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

Json dense() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "silu", "initializer_range": 0.01,
    "attention_bias": false, "mlp_bias": false, "bos_token_id": 128000, "eos_token_id": [128001, 128009],
    "pretraining_tp": 1, "a_key_of_tomorrow": {"kept": true}})");
}

ModelConfig mixture() {
  ModelConfig config = parse_config(dense(), "dense");
  MoeConfig moe;
  moe.layers = {0, 2, 4};
  moe.experts = 8;
  moe.expert_width = 172;
  moe.router = route::parse_router("top2+ir+fr:cf=1.25");
  moe.ep_ranks = 4;
  moe.lb_coef = 0.01;
  moe.router_std = 0.006;
  moe.router_seed = 7;
  moe.source_name = "parent";
  moe.source_sha256 = "abc";
  config.moe = moe;
  return config;
}

// `config` through its own JSON and back.
Json written(const ModelConfig& config) { return Json(config_json(config, dense())); }

std::string refusal(Json json, const Json& patch) {
  json.merge_patch(patch);  // null removes a key
  return test::user_error_of([&] { parse_config(json, "config.json"); });
}

TEST_CASE("every key of a LLaMA config is read", "[model][config]") {
  const ModelConfig config = parse_config(dense(), "config.json");
  CHECK(config.vocab_size == 512);
  CHECK(config.hidden_size == 64);
  CHECK(config.intermediate_size == 172);
  CHECK(config.layers == 5);
  CHECK(config.heads == 8);
  CHECK(config.kv_heads == 4);
  CHECK(config.head_dim == 8);
  CHECK(config.max_position_embeddings == 512);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK(config.tie_word_embeddings);
  CHECK(config.initializer_range == 0.01);
  CHECK(config.dtype == "bfloat16");
  CHECK(config.rope.type == RopeType::kDefault);
  CHECK(config.rope.theta == 500000.0);
  CHECK_FALSE(config.moe);
  CHECK_FALSE(config.is_moe_layer(0));
}

TEST_CASE("absent keys take LLaMA's defaults", "[model][config]") {
  Json json = dense();
  for (const char* key :
       {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
        "tie_word_embeddings", "torch_dtype", "hidden_act", "initializer_range", "architectures"}) {
    json.erase(key);
  }
  json["head_dim"] = nullptr;  // as transformers writes an unset one
  const ModelConfig config = parse_config(json, "config.json");
  CHECK(config.kv_heads == 8);
  CHECK(config.head_dim == 8);
  CHECK(config.max_position_embeddings == 2048);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.rope.theta == 10000.0);
  CHECK_FALSE(config.tie_word_embeddings);
  CHECK(config.dtype == "float32");
  CHECK(config.initializer_range == 0.02);
}

TEST_CASE("a head width of its own need not divide the model width", "[model][config]") {
  Json json = dense();
  json["head_dim"] = 32;
  json["hidden_size"] = 100;
  CHECK(parse_config(json, "config.json").head_dim == 32);
}

TEST_CASE("rope is read from the old and the new form", "[model][config]") {
  const Json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  for (const char* spelling : {"type", "rope_type", "rope_parameters"}) {
    INFO(spelling);
    Json json = dense();
    const bool newer = std::string(spelling) == "rope_parameters";
    Json scaling = llama3;
    scaling[newer ? "rope_type" : spelling] = "llama3";
    if (newer) {
      json.erase("rope_theta");
      json.erase("rope_scaling");
      scaling["rope_theta"] = 500000.0;
    }
    json[newer ? "rope_parameters" : "rope_scaling"] = scaling;
    const RopeConfig rope = parse_config(json, "config.json").rope;
    CHECK(rope.type == RopeType::kLlama3);
    CHECK(rope.theta == 500000.0);
    CHECK(rope.factor == 8.0);
    CHECK(rope.low_freq_factor == 1.0);
    CHECK(rope.high_freq_factor == 4.0);
    CHECK(rope.original_max_position_embeddings == 8192);
  }
}

TEST_CASE("linear and dynamic scaling need no more than a factor", "[model][config]") {
  for (const auto& [name, type] :
       {std::pair{"linear", RopeType::kLinear}, {"dynamic", RopeType::kDynamic}}) {
    Json json = dense();
    json["rope_scaling"] = {{"type", name}, {"factor", 2.0}};
    const RopeConfig rope = parse_config(json, "config.json").rope;
    CHECK(rope.type == type);
    CHECK(rope.factor == 2.0);
  }
}

TEST_CASE("a config written and read again is the same", "[model][config]") {
  ModelConfig config = parse_config(dense(), "dense");
  CHECK(written(config)["model_type"] == "llama");
  CHECK(written(config)["architectures"] == Json({"LlamaForCausalLM"}));
  CHECK(written(parse_config(written(config), "again")) == written(config));
  config = mixture();
  CHECK(written(parse_config(written(config), "again")) == written(config));
  for (const RopeType type : {RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3}) {
    config.rope = {type, 10000.0, 4.0, 1.0, type == RopeType::kLlama3 ? 3.0 : 4.0, 256};
    const ModelConfig again = parse_config(written(config), "again");
    CHECK(again.rope.type == type);
    CHECK(again.rope.high_freq_factor == config.rope.high_freq_factor);
    CHECK(written(again) == written(config));
  }
}

TEST_CASE("a mixture is written as a qwen2_moe config and as the moe object", "[model][config]") {
  const Json json = written(mixture());
  CHECK(json["model_type"] == "qwen2_moe");
  CHECK(json["architectures"] == Json({"Qwen2MoeForCausalLM"}));
  CHECK(json["num_experts"] == 8);
  CHECK(json["num_experts_per_tok"] == 2);
  CHECK(json["norm_topk_prob"] == true);
  CHECK(json["decoder_sparse_step"] == 1);
  CHECK(json["mlp_only_layers"] == Json({1, 3}));
  CHECK(json["moe_intermediate_size"] == 172);
  CHECK(json["shared_expert_intermediate_size"] == 0);
  CHECK(json["qkv_bias"] == false);
  CHECK(json["use_sliding_window"] == false);
  CHECK(json["moe"]["format"] == 1);
  CHECK(json["moe"]["layers"] == Json({0, 2, 4}));
  CHECK(json["moe"]["router"]["family"] == "topk");
  CHECK(json["moe"]["router"]["capacity_factor"] == 1.25);
  CHECK(json["moe"]["ep_ranks"] == 4);
  CHECK(json["moe"]["router_init"] == Json({{"std", 0.006}, {"seed", 7}}));
  CHECK(json["moe"]["source"] == Json({{"name", "parent"}, {"sha256", "abc"}}));
  const ModelConfig config = parse_config(json, "again");
  CHECK(config.is_moe_layer(2));
  CHECK_FALSE(config.is_moe_layer(3));
  CHECK(config.moe->router == mixture().moe->router);
  CHECK(config.moe->router_seed == 7);
}

TEST_CASE("z_coef and seq_lb_coef are there only where they are not 0, and read back exactly",
          "[model]") {
  ModelConfig config = parse_config(written(mixture()), "c");
  CHECK(config.moe->z_coef == 0);
  CHECK(config.moe->seq_lb_coef == 0);
  CHECK_FALSE(written(mixture())["moe"].contains("z_coef"));
  CHECK_FALSE(written(mixture())["moe"].contains("seq_lb_coef"));
  config.moe->z_coef = 0.1 + 0.2;
  config.moe->seq_lb_coef = 1e-4 / 3;
  const Json with = parse_json(config_json(config, Json()).dump(), "c");
  CHECK(parse_config(with, "c").moe->z_coef == 0.1 + 0.2);
  CHECK(parse_config(with, "c").moe->seq_lb_coef == 1e-4 / 3);
  config.moe->z_coef = config.moe->seq_lb_coef = 0;  // a parent's keys do not stay
  CHECK_FALSE(config_json(config, with)["moe"].contains("z_coef"));
  CHECK_FALSE(config_json(config, with)["moe"].contains("seq_lb_coef"));
  for (const char* key : {"z_coef", "seq_lb_coef"}) {
    Json wrong = with;
    wrong["moe"][key] = -1;
    CHECK(test::user_error_of([&] { parse_config(wrong, "c"); }) ==
          fmt::format("c: moe.{} is -1; it must be zero or a positive number", key));
  }
}

TEST_CASE("lambda is there only when a ReLU router was trained, and reads back exactly",
          "[model][config]") {
  const auto with = [](const Json& lambda) {
    Json config = written(mixture());
    config["moe"]["lambda"] = lambda;
    return config;
  };
  CHECK_FALSE(parse_config(written(mixture()), "c").moe->lambda);
  CHECK_FALSE(parse_config(with(nullptr), "c").moe->lambda);
  const double lambda = 1e-8 * 1.2 * 1.2 * 1.2;
  ModelConfig config = parse_config(with(lambda), "c");
  REQUIRE(config.moe->lambda == lambda);
  const Json written = parse_json(config_json(config, with(lambda)).dump(), "c");
  CHECK(parse_config(written, "c").moe->lambda == lambda);
  config.moe->lambda.reset();
  CHECK_FALSE(config_json(config, with(lambda))["moe"].contains("lambda"));
  CHECK(test::user_error_of([&] { parse_config(with(-1.0), "c"); }).find("c: moe.lambda") == 0);
}

TEST_CASE("both spellings of rope and dtype, the head width and unknown keys are written",
          "[model][config]") {
  ModelConfig config = mixture();
  config.rope = {RopeType::kLlama3, 500000.0, 8.0, 1.0, 4.0, 8192};
  Json parent = dense();
  parent["rope_scaling"] = {{"rope_type", "llama3"}, {"a_rope_key_of_tomorrow", 3}};
  const Json json = Json(config_json(config, parent));
  CHECK(json["rope_theta"] == 500000.0);
  CHECK(json["rope_scaling"]["type"] == "llama3");
  CHECK(json["rope_scaling"]["rope_type"] == "llama3");
  CHECK(json["rope_scaling"]["a_rope_key_of_tomorrow"] == 3);
  CHECK(json["rope_parameters"]["rope_type"] == "llama3");
  CHECK(json["rope_parameters"]["rope_theta"] == 500000.0);
  CHECK(json["rope_parameters"]["original_max_position_embeddings"] == 8192);
  CHECK(json["dtype"] == "bfloat16");
  CHECK(json["torch_dtype"] == "bfloat16");
  CHECK(json["head_dim"] == 8);
  CHECK(json["a_key_of_tomorrow"] == Json({{"kept", true}}));
  CHECK(json["eos_token_id"] == Json({128001, 128009}));
}

TEST_CASE("LLaMA's token defaults are written out, because qwen2_moe has others",
          "[model][config]") {
  Json parent = dense();
  parent.erase("bos_token_id");
  parent.erase("eos_token_id");
  const Json json = Json(config_json(mixture(), parent));
  CHECK(json["bos_token_id"] == 1);
  CHECK(json["eos_token_id"] == 2);
}

TEST_CASE("routers that stock tools cannot follow say so in the stock keys", "[model][config]") {
  struct Case {
    std::string router, model_type, architecture;
    int64_t per_token;
    bool normalised;
  };
  for (const Case& c : {Case{"top1", "qwen2_moe", "Qwen2MoeForCausalLM", 1, true},
                        Case{"top2:gate=none", "qwen2_moe", "Qwen2MoeForCausalLM", 2, false},
                        Case{"topp:0.4", "qwen2_moe", "Qwen2MoeForCausalLM", 2, false},
                        Case{"topp:0.4,max=3", "qwen2_moe", "Qwen2MoeForCausalLM", 3, false},
                        Case{"relu:k=1", "moe_relu", "MoeReluForCausalLM", 1, false},
                        Case{"top2:bias=0", "moe_biased", "MoeBiasedForCausalLM", 2, true}}) {
    INFO(c.router);
    ModelConfig config = mixture();
    config.moe->router = route::parse_router(c.router);
    const Json json = written(config);
    CHECK(json["model_type"] == c.model_type);
    CHECK(json["architectures"] == Json::array({c.architecture}));
    CHECK(json["num_experts_per_tok"] == c.per_token);
    CHECK(json["norm_topk_prob"] == c.normalised);
    CHECK(parse_config(json, "again").moe->router == config.moe->router);
  }
  ModelConfig scaled = mixture();
  scaled.moe->gate_scale = 1.5;
  CHECK(written(scaled)["model_type"] == "moe_scaled");
  CHECK(parse_config(written(scaled), "again").moe->gate_scale == 1.5);
}

TEST_CASE("a config that describes another function or none is refused by name",
          "[model][config]") {
  struct Case {
    Json patch;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{{"vocab_size", nullptr}}, "vocab_size"},
      {{{"hidden_size", nullptr}}, "hidden_size"},
      {{{"hidden_size", 0}}, "config.json: hidden_size is 0; it must be between 1 and 2147483648"},
      {{{"hidden_size", -64}},
       "config.json: hidden_size is -64; it must be between 1 and 2147483648"},
      {{{"vocab_size", 1e12}}, "vocab_size"},
      {{{"num_hidden_layers", 20000}},
       "config.json: num_hidden_layers is 20000; it must be between 1 and 16384"},
      {{{"model_type", "gemma2"}, {"architectures", {"Gemma2ForCausalLM"}}},
       "config.json: architecture 'Gemma2ForCausalLM' with model_type 'gemma2' is not read; known "
       "are LlamaForCausalLM (llama), MistralForCausalLM (mistral), Qwen2ForCausalLM (qwen2), "
       "Qwen3ForCausalLM (qwen3), MixtralForCausalLM (mixtral), Qwen2MoeForCausalLM (qwen2_moe), "
       "Qwen3MoeForCausalLM (qwen3_moe), and moe_biased, moe_relu, moe_expert_choice or moe_scaled "
       "as moe writes them"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "'LlamaForSequenceClassification'"},
      {{{"architectures", "LlamaForCausalLM"}},
       "config.json: architectures must be a list of names, such as [\"LlamaForCausalLM\"]"},
      {{{"model_type", nullptr}, {"architectures", nullptr}},
       "config.json: neither model_type nor architectures is there; a LLaMA folder has model_type "
       "\"llama\""},
      {{{"model_type", "moe_relu"}, {"architectures", {"MoeReluForCausalLM"}}},
       "config.json: a moe_relu folder without the \"moe\" object that moe writes into it"},
      {{{"hidden_act", "gelu"}},
       "config.json: hidden_act 'gelu' is not supported; LLaMA's is silu"},
      {{{"attention_bias", true}},
       "config.json: attention_bias is true; such models are not supported, only those without it"},
      {{{"mlp_bias", true}},
       "config.json: mlp_bias is true; such models are not supported, only those without it"},
      {{{"quantization_config", {{"bits", 4}}}},
       "config.json: quantization_config is set; fetch or make the folder in float32, bfloat16 or "
       "float16"},
      {{{"num_key_value_heads", 3}},
       "config.json: num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
      {{{"hidden_size", 63}},
       "config.json: hidden_size 63 is not a multiple of num_attention_heads 8 and head_dim is not "
       "given"},
      {{{"head_dim", 7}},
       "config.json: head_dim 7 is odd; rotary positions turn pairs, it must be even"},
      {{{"rms_norm_eps", -1e-5}},
       "config.json: rms_norm_eps is -1e-05; it must be a positive number"},
      {{{"rms_norm_eps", 0}}, "config.json: rms_norm_eps is 0; it must be a positive number"},
      {{{"initializer_range", -1}},
       "config.json: initializer_range is -1; it must be zero or a positive number"},
      {{{"rope_theta", 0}}, "config.json: rope_theta is 0; it must be a positive number"},
      {{{"torch_dtype", "float8_e4m3fn"}},
       "config.json: dtype 'float8_e4m3fn' is not supported; known are float32, bfloat16 and "
       "float16"},
      {{{"hidden_size", 1 << 30}, {"vocab_size", 1 << 30}},
       "config.json: these sizes make 1.96e+19 parameters, beyond the limit of 2^50; one of them "
       "must be wrong"}};
  for (const auto& c : cases) {
    INFO(c.patch.dump());
    const std::string message = refusal(dense(), c.patch);
    CHECK(message.rfind("config.json", 0) == 0);
    if (c.message.rfind("config.json", 0) == 0) {
      CHECK(message == c.message);
    } else {  // a part, where the sentence is that of core/base/json
      CHECK(message.find(c.message) != std::string::npos);
    }
  }
  CHECK(test::user_error_of([] { parse_config(Json::array(), "config.json"); }) ==
        "config.json: a config must be a JSON object, not array");
}

TEST_CASE("rope scaling that is not computed is refused by name", "[model][config]") {
  struct Case {
    Json scaling;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{{"type", "yarn"}, {"factor", 2.0}},
       "config.json: rope_scaling: rope type 'yarn' is not supported; known are default, linear, "
       "dynamic and llama3"},
      {{{"type", "linear"}, {"factor", 0.5}},
       "config.json: rope_scaling: the rope factor is 0.5; it must be at least 1"},
      {{{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 4},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 8192}},
       "config.json: rope_scaling: high_freq_factor 4 must be above low_freq_factor 4"},
      {{{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
       "config.json: rope_scaling: llama3 rope needs original_max_position_embeddings"},
      {{{"type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}},
       "config.json: rope_scaling: partial_rotary_factor other than 1 is not supported"},
      {{{"full_attention", {{"rope_type", "default"}}}},
       "config.json: rope_scaling: 'full_attention' gives a rope of its own to some layers, which "
       "is not supported"}};
  for (const auto& c : cases) {
    CHECK(refusal(dense(), {{"rope_scaling", c.scaling}}) == c.message);
  }
  CHECK(refusal(dense(), {{"rope_scaling", {{"type", "linear"}}}}).find("factor") !=
        std::string::npos);
  CHECK(refusal(dense(), {{"rope_scaling", "linear"}}) ==
        "config.json: rope_scaling must be an object, not string");
  const std::string both =
      "config.json: rope_theta, rope_scaling and rope_parameters say different things; remove the "
      "wrong ones";
  CHECK(refusal(dense(), {{"rope_parameters",
                           {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}) == both);
  CHECK(refusal(dense(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                          {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}}) == both);
  CHECK(refusal(dense(), {{"rope_scaling",
                           {{"type", "linear"}, {"factor", 2}, {"rope_theta", 3.0}}}}) == both);
}

TEST_CASE("a moe object that does not fit its model is refused by name", "[model][config]") {
  struct Case {
    Json patch;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{{"moe", {{"format", 2}}}},
       "config.json: moe.format is 2; this version of moe reads format 1"},
      {{{"moe", {{"layers", Json::array()}}}},
       "config.json: moe.layers is empty; a folder without MoE layers has no \"moe\" object"},
      {{{"moe", {{"layers", {0, 2, 5}}}}},
       "config.json: moe.layers names layer 5; the model has layers 0 to 4"},
      {{{"moe", {{"layers", {-1, 2}}}}},
       "config.json: moe.layers names layer -1; the model has layers 0 to 4"},
      {{{"moe", {{"layers", {0, 2, 2}}}}},
       "config.json: moe.layers must ascend without repetition, but 2 follows 2"},
      {{{"mlp_only_layers", {1, 2, 3}}},
       "config.json: layer 2 is dense by mlp_only_layers and decoder_sparse_step, but MoE by "
       "moe.layers; make them agree"},
      {{{"decoder_sparse_step", 2}},
       "config.json: layer 0 is dense by mlp_only_layers and decoder_sparse_step, but MoE by "
       "moe.layers; make them agree"},
      {{{"mlp_only_layers", {1}}},
       "config.json: layer 3 is MoE by mlp_only_layers and decoder_sparse_step, but dense by "
       "moe.layers; make them agree"},
      {{{"num_experts", 0}}, "config.json: num_experts is 0; it must be between 1 and 2147483648"},
      {{{"num_experts", 100000}},
       "config.json: 100000 experts in 3 layers are too many; at most 262144 in all"},
      {{{"moe", {{"router", nullptr}}}}, "config.json: moe.router is missing"},
      {{{"num_experts_per_tok", 1}},
       "config.json: num_experts_per_tok is 1, moe.router.k is 2; make them equal"},
      {{{"moe", {{"gate_scale", 0}}}},
       "config.json: moe.gate_scale is 0; it must be a positive number"},
      {{{"moe", {{"gate_scale", 2}}}},
       "config.json: model_type is qwen2_moe, but a folder with router top2+ir+fr:cf=1.25 and "
       "gate_scale 2 must say "
       "moe_scaled"},
      {{{"moe", {{"ep_ranks", 3}}}}, "config.json: 8 experts do not divide over moe.ep_ranks 3"},
      {{{"moe", {{"ep_ranks", 0}}}},
       "config.json: moe.ep_ranks is 0; it must be between 1 and 2147483648"},
      {{{"moe", {{"lb_coef", -1}}}},
       "config.json: moe.lb_coef is -1; it must be zero or a positive number"},
      {{{"shared_expert_intermediate_size", -64}},
       "config.json: shared_expert_intermediate_size is -64; it must be between 0, which is none, "
       "and 2147483648"},
      {{{"moe", {{"form", "mixtral"}}}},
       "config.json: moe.form is 'mixtral', which a folder with model_type qwen2_moe cannot have; "
       "known are moe, and qwen2_moe in a qwen2_moe folder, qwen3_moe in a qwen3_moe folder"},
      {{{"moe", 3}}, "config.json: moe must be an object, not number"}};
  for (const auto& c : cases) {
    INFO(c.patch.dump());
    CHECK(refusal(written(mixture()), c.patch) == c.message);
  }
  CHECK(refusal(written(mixture()), {{"num_experts", 1}, {"moe", {{"ep_ranks", 1}}}}) ==
        "config.json: router 'top2+ir+fr:cf=1.25' asks for 2 experts per token, the layers have 1: "
        "give a "
        "smaller k or more experts");
}

}  // namespace
}  // namespace moe::model
