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
  config.moe->shared_expert_width = 20;  // active for every token
  CHECK(count_parameters(config).active == dense + router + 3 * 16 * 20 + 16);
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
