#include "core/model/config/weights.h"

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

ModelConfig tiny(bool tied = false) {
  return parse_config(Json(test::tiny_config({.tied = tied})), "tiny");
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

using test::contains_text;
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
// list was changed, or "".
std::string message_for(const std::function<void(Tensors&)>& change, bool tied = false) {
  const test::TempDir folder;
  Tensors tensors = test::tiny_tensors({.tied = tied});
  change(tensors);
  io::write_file(folder / "config.json", test::tiny_config({.tied = tied}).dump());
  std::vector<io::TensorSource> sources;
  for (const auto& info : tensors) {
    sources.push_back({info, [info](io::SafetensorsWriter& writer) {
                         const std::string zeros(static_cast<size_t>(info.bytes()), '\0');
                         writer.write(std::as_bytes(std::span(zeros)));
                       }});
  }
  io::write_tensors(folder.path(), sources, uint64_t{1} << 40);
  const io::Checkpoint checkpoint(folder.path());
  return test::user_error_of([&] { check_tensors(checkpoint, tiny(tied)); });
}

TEST_CASE("the tensors of a dense model have LLaMA's names and shapes", "[model][weights]") {
  for (const bool tied : {false, true}) {
    const auto expected = expected_tensors(tiny(tied));
    const auto written = test::tiny_tensors({.tied = tied});
    REQUIRE(expected.size() == written.size());
    for (const auto& info : written) {
      const auto* entry = find(expected, info.name);
      REQUIRE(entry != nullptr);
      CHECK(entry->shape == info.shape);
      CHECK(entry->dtype == info.dtype);
    }
  }
}

TEST_CASE("a MoE layer has a router in F32, and an empty shared expert for stock tools",
          "[model][weights]") {
  ModelConfig config = tiny_mixture();
  config.dtype = "bfloat16";
  const auto expected = expected_tensors(config);
  const auto* router = find(expected, "model.layers.1.mlp.gate.weight");
  REQUIRE(router != nullptr);
  CHECK(router->dtype == io::DType::kF32);
  CHECK(router->shape == std::vector<int64_t>{4, 16});
  const auto* down = find(expected, "model.layers.1.mlp.experts.3.down_proj.weight");
  REQUIRE(down != nullptr);
  CHECK(down->dtype == io::DType::kBF16);
  CHECK(find(expected, "model.layers.1.mlp.down_proj.weight") == nullptr);
  CHECK(find(expected, "model.layers.1.mlp.experts.4.down_proj.weight") == nullptr);
  CHECK(find(expected, "model.layers.0.mlp.down_proj.weight") != nullptr);
  const auto shared = shared_expert_tensors(config);
  REQUIRE(shared.size() == 4);
  CHECK(find(shared, "model.layers.1.mlp.shared_expert.gate_proj.weight")->shape ==
        std::vector<int64_t>{0, 16});
  CHECK(find(shared, "model.layers.1.mlp.shared_expert.down_proj.weight")->shape ==
        std::vector<int64_t>{16, 0});
  CHECK(find(shared, "model.layers.1.mlp.shared_expert_gate.weight")->shape ==
        std::vector<int64_t>{1, 16});
  CHECK(shared_expert_tensors(tiny()).empty());
}

TEST_CASE("the parameters of a shared expert are active for every token", "[model][weights]") {
  ModelConfig config = tiny_mixture();
  const ParameterCount without = count_parameters(config);
  config.moe->shared_expert_width = 20;
  const char* gate = "model.layers.1.mlp.shared_expert_gate.weight";
  CHECK(find(expected_tensors(config), gate) != nullptr);
  CHECK(is_shared_expert_gate(gate));
  CHECK_FALSE(is_router(gate));
  CHECK_FALSE(is_shared_expert_gate("model.layers.1.mlp.shared_expert.gate_proj.weight"));
  CHECK(shared_expert_tensors(config).empty());
  const ParameterCount with = count_parameters(config);
  const auto layers = static_cast<int64_t>(config.moe->layers.size());
  CHECK(with.total - without.total == layers * (3 * 16 * 20 + 16));
  CHECK(with.active - without.active == layers * (3 * 16 * 20 + 16));
}

TEST_CASE("Qwen1.5-MoE-A2.7B has 14.3 billion parameters, 2.7 billion of them active",
          "[model][weights]") {
  const Json json = parse_json(R"({"architectures": ["Qwen2MoeForCausalLM"],
      "model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 2048,
      "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
      "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
      "use_sliding_window": false, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
      "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
      "norm_topk_prob": false, "output_router_logits": false, "router_aux_loss_coef": 0.001})",
                               "config.json");
  const ModelConfig config = parse_config(json, "config.json");
  CHECK(config.sliding_window == 0);
  const ParameterCount count = count_parameters(config);
  CHECK(count.total == 14'315'784'192);
  CHECK(count.active == 2'689'173'504);
}

TEST_CASE("stock mixtures have the tensor names of their own files", "[model][weights]") {
  const auto qwen = test::Foreign::kQwen2Moe;
  const io::DType bf16 = io::DType::kBF16;
  for (const test::ForeignCheckpoint& options :
       {test::ForeignCheckpoint{.dense_layers = {}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .biases = true, .dense_layers = {1}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .biases = false, .dense_layers = {}, .tiny = {.dtype = bf16}},
        {.kind = qwen, .dense_layers = {1}, .shared_width = 20, .tiny = {.dtype = bf16}}}) {
    const ModelConfig config = parse_config(Json(test::foreign_config(options)), "stock");
    Tensors listed = expected_tensors(config);
    const auto shared = shared_expert_tensors(config);
    CHECK(shared.empty() == (options.kind != qwen || options.shared_width > 0));
    listed.insert(listed.end(), shared.begin(), shared.end());
    const auto stored = test::foreign_tensors(options);
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

TEST_CASE("parameters are counted in total and per active token", "[model][weights]") {
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
}

TEST_CASE("tensors that do not fit the config are refused by name, leftovers are ignored",
          "[model][weights]") {
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

}  // namespace
}  // namespace moe::model
