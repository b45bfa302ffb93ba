// Configs of LLaMA folders and the "moe" object: what is read, written and refused. Layer lists and
// the precision of inference.

#include "core/model/config/config.h"

#include "core/io/file.h"
#include "core/model/config/compute.h"
#include "core/model/config/weights.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;
using Layers = std::vector<int64_t>;

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

Json written(const ModelConfig& config) { return Json(config_json(config, dense())); }

// Returns true if `json` has every key and value of `part`.
bool has(const Json& json, const Json& part) {
  Json merged = json;
  merged.merge_patch(part);
  return merged == json;
}

struct Refusal {
  Json patch;  // null removes a key
  std::string fact;
};

// Checks that `json` with each patch is refused by a message that has the fact.
void check_refused(const Json& json, const std::vector<Refusal>& refusals) {
  for (const auto& [patch, fact] : refusals) {
    INFO(patch.dump());
    Json changed = json;
    changed.merge_patch(patch);
    const std::string message = user_error_of([&] { parse_config(changed, "config.json"); });
    CHECK(message.starts_with("config.json"));
    CHECK_THAT(message, contains_text(fact));
  }
}

ModelConfig tiny(bool tied = false) {
  return parse_config(Json(tiny_config({.tied = tied})), "tiny");
}

ModelConfig tiny_mixture() {
  ModelConfig config = tiny();
  MoeConfig moe;
  moe.layers = {1};
  moe.experts = 4;
  moe.expert_width = 24;
  moe.router = route::parse_router("top2");
  moe.ep_ranks = 4;
  config.moe = moe;
  return config;
}

using Tensors = std::vector<io::TensorInfo>;

const io::TensorInfo* find(const Tensors& list, const std::string& name) {
  for (const auto& info : list) {
    if (info.name == name) {
      return &info;
    }
  }
  return nullptr;
}

// Returns the message of the UserError that check_tensors() throws for a tiny folder whose tensor
// list was changed, or "". Weights are 0, but all bytes of lm_head are `head_byte`.
std::string message_for(const std::function<void(Tensors&)>& change, bool tied = false,
                        char head_byte = '\0') {
  const TempDir folder;
  Tensors tensors = tiny_tensors({.tied = tied});
  change(tensors);
  io::write_file(folder / "config.json", tiny_config({.tied = tied}).dump());
  std::vector<io::TensorSource> sources;
  for (const auto& info : tensors) {
    const char byte = info.name == "lm_head.weight" ? head_byte : '\0';
    sources.push_back({info, [info, byte](io::SafetensorsWriter& writer) {
                         const std::string bytes(static_cast<size_t>(info.bytes()), byte);
                         writer.write(std::as_bytes(std::span(bytes)));
                       }});
  }
  io::write_tensors(folder.path(), sources, uint64_t{1} << 40);
  const io::Checkpoint checkpoint(folder.path());
  return user_error_of([&] { check_tensors(checkpoint, tiny(tied)); });
}

TEST_CASE("absent keys take LLaMA's defaults") {
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
  json["head_dim"] = 32;
  json["hidden_size"] = 100;  // need not be a multiple of head_dim
  CHECK(parse_config(json, "config.json").head_dim == 32);
}

TEST_CASE("rope scaling is read from the old and the new form") {
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

TEST_CASE("a config written and read again is the same") {
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

TEST_CASE("a mixture is written as a qwen2_moe config and as the moe object") {
  const Json json = written(mixture());
  CHECK(has(json, Json::parse(R"({"model_type": "qwen2_moe",
      "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [1, 3],
      "moe_intermediate_size": 172, "shared_expert_intermediate_size": 0, "qkv_bias": false,
      "use_sliding_window": false,
      "moe": {"format": 1, "layers": [0, 2, 4],
              "router": {"family": "topk", "capacity_factor": 1.25}, "ep_ranks": 4,
              "router_init": {"std": 0.006, "seed": 7},
              "source": {"name": "parent", "sha256": "abc"}}})")));
  const ModelConfig config = parse_config(json, "again");
  CHECK(config.is_moe_layer(2));
  CHECK_FALSE(config.is_moe_layer(3));
  CHECK(config.moe->router == mixture().moe->router);
  CHECK(config.moe->router_seed == 7);
}

TEST_CASE("optional numbers of the moe object are read back exactly, and absent if not set") {
  const double third = 1e-4 / 3, lambda = 1e-8 * 1.2 * 1.2 * 1.2;
  ModelConfig config = mixture();
  const auto keys = [&] {
    const Json moe = parse_json(config_json(config, Json()).dump(), "c")["moe"];
    return std::tuple(moe.contains("z_coef"), moe.contains("seq_lb_coef"), moe.contains("lambda"));
  };
  CHECK(keys() == std::tuple(false, false, false));
  config.moe->z_coef = 0.1 + 0.2;
  config.moe->seq_lb_coef = third;
  config.moe->lambda = lambda;
  const Json with = parse_json(config_json(config, Json()).dump(), "c");
  const ModelConfig again = parse_config(with, "c");
  CHECK(again.moe->z_coef == 0.1 + 0.2);
  CHECK(again.moe->seq_lb_coef == third);
  CHECK(again.moe->lambda == lambda);
  // The keys of a parent's moe object are not inherited.
  CHECK_FALSE(has(Json(config_json(mixture(), with)), {{"moe", {{"z_coef", 0.1 + 0.2}}}}));
  CHECK_FALSE(Json(config_json(mixture(), with))["moe"].contains("lambda"));
  for (const char* key : {"z_coef", "seq_lb_coef", "lambda"}) {
    check_refused(with, {{{{"moe", {{key, -1}}}}, fmt::format("moe.{}", key)}});
  }
}

TEST_CASE("both spellings of rope and dtype, the head width and unknown keys are written") {
  ModelConfig config = mixture();
  config.rope = {RopeType::kLlama3, 500000.0, 8.0, 1.0, 4.0, 8192};
  Json parent = dense();
  parent["rope_scaling"] = {{"rope_type", "llama3"}, {"a_rope_key_of_tomorrow", 3}};
  const Json json = Json(config_json(config, parent));
  CHECK(has(json, Json::parse(R"({"rope_theta": 500000.0,
      "rope_scaling": {"type": "llama3", "rope_type": "llama3", "a_rope_key_of_tomorrow": 3},
      "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0,
                          "original_max_position_embeddings": 8192},
      "dtype": "bfloat16", "torch_dtype": "bfloat16", "head_dim": 8,
      "a_key_of_tomorrow": {"kept": true}, "eos_token_id": [128001, 128009]})")));
  // LLaMA's token defaults are written out because qwen2_moe has others.
  parent.erase("bos_token_id");
  parent.erase("eos_token_id");
  const Json defaults = Json(config_json(mixture(), parent));
  CHECK(defaults["bos_token_id"] == 1);
  CHECK(defaults["eos_token_id"] == 2);
}

TEST_CASE("the stock keys describe the nearest stock router, or a model_type of moe") {
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

TEST_CASE("an unsupported or invalid config is refused by name") {
  check_refused(
      dense(),
      {{{{"vocab_size", nullptr}}, "vocab_size"},
       {{{"hidden_size", 0}}, "hidden_size is 0"},
       {{{"vocab_size", 1e12}}, "vocab_size"},
       {{{"num_hidden_layers", 20000}}, "num_hidden_layers is 20000"},
       {{{"model_type", "gemma2"}, {"architectures", {"Gemma2ForCausalLM"}}},
        "'Gemma2ForCausalLM' with model_type 'gemma2' is not supported; supported are "
        "LlamaForCausalLM"},
       {{{"architectures", "LlamaForCausalLM"}}, "architectures must be a list of names"},
       {{{"model_type", nullptr}, {"architectures", nullptr}},
        "model_type and architectures are missing"},
       {{{"model_type", "moe_relu"}, {"architectures", {"MoeReluForCausalLM"}}},
        "moe_relu folder without the \"moe\" object"},
       {{{"hidden_act", "gelu"}}, "hidden_act 'gelu'"},
       {{{"attention_bias", true}}, "attention_bias is true"},
       {{{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
       {{{"num_key_value_heads", 3}},
        "num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
       {{{"hidden_size", 63}}, "hidden_size 63 is not a multiple of num_attention_heads 8"},
       {{{"head_dim", 7}}, "head_dim 7 is odd"},
       {{{"rms_norm_eps", -1e-5}}, "rms_norm_eps is -1e-05"},
       {{{"hidden_size", 1 << 30}, {"vocab_size", 1 << 30}}, "1.96e+19 parameters"}});
  CHECK_THAT(user_error_of([] { parse_config(Json::array(), "config.json"); }),
             contains_text("must be a JSON object, not array"));
}

TEST_CASE("unsupported rope scaling is refused by name") {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 4},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 8192}};
  Json without_length = llama3;
  without_length["low_freq_factor"] = 1;
  without_length.erase("original_max_position_embeddings");
  const std::string both = "rope_theta, rope_scaling and rope_parameters contradict each other";
  check_refused(
      dense(),
      {{{{"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}}}, "rope type 'yarn'"},
       {{{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}}, "the rope factor is 0.5"},
       {{{"rope_scaling", llama3}}, "high_freq_factor 4 must be above low_freq_factor 4"},
       {{{"rope_scaling", without_length}}, "llama3 rope needs original_max_position_embeddings"},
       {{{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}}}},
        "partial_rotary_factor"},
       {{{"rope_scaling", {{"full_attention", {{"rope_type", "default"}}}}}}, "'full_attention'"},
       {{{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}, both},
       {{{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
         {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}},
        both}});
}

TEST_CASE("a moe object that does not fit its model is refused by name") {
  check_refused(
      written(mixture()),
      {{{{"moe", {{"format", 2}}}}, "moe.format is 2"},
       {{{"moe", {{"layers", Json::array()}}}}, "moe.layers is empty"},
       {{{"moe", {{"layers", {0, 2, 5}}}}}, "moe.layers names layer 5"},
       {{{"moe", {{"layers", {0, 2, 2}}}}}, "moe.layers must ascend"},
       {{{"mlp_only_layers", {1, 2, 3}}}, "layer 2 is dense by mlp_only_layers"},
       {{{"num_experts", 100000}}, "100000 experts in 3 layers"},
       {{{"num_experts", 1}, {"moe", {{"ep_ranks", 1}}}}, "2 experts per token, the layers have 1"},
       {{{"moe", {{"router", nullptr}}}}, "moe.router is missing"},
       {{{"num_experts_per_tok", 1}}, "num_experts_per_tok is 1, moe.router.k is 2"},
       {{{"moe", {{"gate_scale", 2}}}}, "must have moe_scaled"},
       {{{"moe", {{"ep_ranks", 3}}}}, "8 experts do not divide over moe.ep_ranks 3"},
       {{{"shared_expert_intermediate_size", -64}}, "shared_expert_intermediate_size is -64"},
       {{{"moe", {{"form", "mixtral"}}}}, "moe.form is 'mixtral'"},
       {{{"moe", 3}}, "moe must be an object, not number"}});
}

TEST_CASE("layers are given as a pattern or a list") {
  CHECK(parse_layers("even", 5) == Layers{0, 2, 4});
  CHECK(parse_layers("odd", 5) == Layers{1, 3});
  CHECK(parse_layers("all", 3) == Layers{0, 1, 2});
  CHECK(parse_layers("3,0,1", 5) == Layers{0, 1, 3});
  CHECK(parse_layers("0-2,4", 5) == Layers{0, 1, 2, 4});
  CHECK(parse_layers("3-3", 5) == Layers{3});
  struct Case {
    std::string text;
    int64_t layers;
    std::string fact;
  };
  for (const Case& c :
       {Case{"5", 5, "layer 5 does not exist; the model has layers 0 to 4"},
        Case{"99999999999999999999", 5, "layer 99999999999999999999 does not exist"},
        Case{"evn", 5, "'evn' is not understood"}, Case{"", 5, "'' is not understood"},
        Case{"3-1", 5, "the range 3-1 is reversed"}, Case{"0-2,1", 5, "layer 1 is named twice"},
        Case{"odd", 1, "a model of 1 layer"}}) {
    const std::string message = user_error_of([&] { parse_layers(c.text, c.layers); });
    CHECK_THAT(message, contains_text("--layers " + c.text) && contains_text(c.fact));
  }
}

TEST_CASE("inference is in bf16 on a GPU and in f32 on a CPU by default") {
  CHECK(inference_precision({}, /*on_cuda=*/true) == Precision::kBf16);
  CHECK(inference_precision({}, /*on_cuda=*/false) == Precision::kF32);
  for (const auto given : {Precision::kF32, Precision::kTf32, Precision::kBf16}) {
    CHECK(inference_precision(given, true) == given);
  }
  CHECK(inference_precision(Precision::kBf16, false) == Precision::kBf16);
  CHECK_THAT(user_error_of([] { inference_precision(Precision::kTf32, false); }),
             contains_text("--precision tf32") && contains_text("--device cuda"));
}

TEST_CASE("stock mixtures have the tensor names of their own files") {
  const auto qwen = Foreign::kQwen2Moe;
  const io::DType bf16 = io::DType::kBF16;
  for (const ForeignCheckpoint& options :
       {ForeignCheckpoint{.dense_layers = {}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .biases = true, .dense_layers = {1}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .biases = false, .dense_layers = {}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .dense_layers = {1}, .shared_width = 20, .tiny = {.dtype = bf16}}}) {
    const ModelConfig config = parse_config(Json(foreign_config(options)), "stock");
    Tensors listed = expected_tensors(config);
    const auto shared = shared_expert_tensors(config);
    CHECK(shared.empty() == (options.kind != qwen || options.shared_width > 0));
    listed.insert(listed.end(), shared.begin(), shared.end());
    const auto stored = foreign_tensors(options);
    CHECK(listed.size() == stored.size());
    int64_t total = 0;
    for (const auto& info : stored) {
      INFO(info.name);
      const io::TensorInfo* found = find(listed, info.name);
      REQUIRE(found != nullptr);
      CHECK(found->shape == info.shape);
      CHECK(found->dtype == info.dtype);  // the router's too
      CHECK(is_router(info.name) == (info.name.find(".gate.weight") != std::string::npos));
      const bool is_counted =
          options.shared_width > 0 || info.name.find("shared_expert") == std::string::npos;
      total += is_counted ? info.elements() : 0;
    }
    CHECK(count_parameters(config).total == total);
  }
}

TEST_CASE("parameters are counted in total and per active token") {
  // V D + (2 D + D HA + 2 D GA + HA D) a layer + 3 D F a dense layer + D + V D, with D = HA = 16,
  // GA = 8, F = 24, V = 64.
  const int64_t attention = 16 * 16 + 2 * 16 * 8 + 16 * 16, norms = 2 * 16,
                feed_forward = 3 * 16 * 24;
  const int64_t dense = 2 * 64 * 16 + 16 + 3 * (attention + norms + feed_forward);
  CHECK(count_parameters(tiny()).total == dense);
  CHECK(count_parameters(tiny()).active == dense);
  CHECK(count_parameters(tiny(true)).total == dense - 64 * 16);
  ModelConfig config = tiny_mixture();
  const int64_t router = 4 * 16;
  CHECK(count_parameters(config).total == dense + 3 * feed_forward + router);
  CHECK(count_parameters(config).active == dense + 1 * feed_forward + router);
  config.moe->router = route::parse_router("topp:0.4");
  CHECK(count_parameters(config).active == dense + router);
  config.moe->shared_expert_width = 20;  // active for every token
  CHECK(count_parameters(config).active == dense + router + 3 * 16 * 20 + 16);
}

TEST_CASE("tensors that do not fit the config are refused by name, leftovers are ignored") {
  const auto with = [](const char* name, std::vector<int64_t> shape, bool tied = false) {
    return message_for(
        [&](Tensors& tensors) {
          tensors.push_back({name, io::DType::kF32, shape});
        },
        tied);
  };
  CHECK(message_for([](Tensors&) {}).empty());
  CHECK(with("model.layers.0.self_attn.rotary_emb.inv_freq", {2}).empty());
  CHECK(with("lm_head.weight", {64, 16}, /*tied=*/true).empty());
  CHECK_THAT(message_for([](Tensors& tensors) { tensors.erase(tensors.begin() + 3); }),
             contains_text("'model.layers.0.self_attn.k_proj.weight' [8, 16] is missing"));
  CHECK_THAT(
      message_for([](Tensors& tensors) { tensors[1].shape = {17}; }),
      contains_text("'model.layers.0.input_layernorm.weight' is [17], config.json says [16]"));
  CHECK_THAT(message_for([](Tensors& tensors) { tensors[1].dtype = io::DType::kI32; }),
             contains_text("'model.layers.0.input_layernorm.weight' is stored as I32"));
  CHECK_THAT(with("lm_head.weight", {32, 16}, /*tied=*/true),
             contains_text("'lm_head.weight' is [32, 16], config.json says [64, 16]"));
  CHECK_THAT(with("model.layers.3.input_layernorm.weight", {16}),
             contains_text("'model.layers.3.input_layernorm.weight' [16] is not one"));
  CHECK_THAT(with("model.layers.0.self_attn.q_proj.bias", {16}),
             contains_text("'model.layers.0.self_attn.q_proj.bias' [16] is not"));
  CHECK_THAT(with("model.layers.0.mlp.experts.gate_up_proj", {4, 48, 16}),
             contains_text("'model.layers.0.mlp.experts.gate_up_proj' [4, 48, 16]") &&
                 contains_text("save_original_format=True"));
}

TEST_CASE("a tied folder may store a copy of the embedding as its head, but no other head") {
  for (const io::DType dtype : {io::DType::kF32, io::DType::kF16}) {
    for (const char byte : {'\0', '\1'}) {
      const auto add_head = [&](Tensors& tensors) {
        tensors.push_back({"lm_head.weight", dtype, {64, 16}});
      };
      const std::string message = message_for(add_head, /*tied=*/true, byte);
      const bool is_copy = dtype == io::DType::kF32 && byte == '\0';
      CHECK_THAT(message, contains_text(is_copy ? "" : "lm_head.weight differs from model.embed"));
      CHECK_THAT(message, contains_text(is_copy ? "" : "\"tie_word_embeddings\": false"));
      CHECK(message.empty() == is_copy);
    }
  }
}

}  // namespace
}  // namespace moe::model
