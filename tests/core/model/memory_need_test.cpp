// Counted on a small folder by hand, and beside what loading it makes.

#include "core/model/llama/memory_need.h"

#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::model {
namespace {

TEST_CASE("bytes_to_copy is what loading makes: all in f32, or what is not mapped", "[model]") {
  const test::TempDir dir;
  test::TinyCheckpoint shape;
  shape.dtype = io::DType::kBF16;
  test::write_tiny_checkpoint(dir / "m", shape);
  const io::Checkpoint checkpoint(dir / "m");
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  uint64_t all = 0, copied = 0;
  const Llama wide = Llama::load(checkpoint);
  for (const auto& parameter : wide.parameters()) {
    all += parameter.tensor.nbytes();
  }
  CHECK(bytes_to_copy(config, Storage::kF32, at::kCPU) == all);
  const Llama mapped = Llama::load(checkpoint, {}, at::kCPU, Storage::kStored);
  for (const auto& [info, tensor, begin] : mapped.folder_tensors(mapped.default_routing())) {
    copied += tensor.scalar_type() == at::kFloat ? tensor.nbytes() : 0;  // norms and routers
  }
  CHECK(copied > 0);
  CHECK(bytes_to_copy(config, Storage::kStored, at::kCPU) == copied);
  CHECK(bytes_to_copy(config, Storage::kStored, {at::kCUDA, 0}) == 0);
}

TEST_CASE("of a folder with a shared expert its gate is copied, its matrices are mapped",
          "[model]") {
  const test::TempDir dir;
  test::write_foreign_checkpoint(dir / "m", {.kind = test::Foreign::kQwen2Moe,
                                             .dense_layers = {},
                                             .shared_width = 20,
                                             .tiny = {.dtype = io::DType::kBF16}});
  const io::Checkpoint checkpoint(dir / "m");
  const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
  uint64_t copied = 0;
  const Llama mapped = Llama::load(checkpoint, {}, at::kCPU, Storage::kStored);
  for (const auto& [info, tensor, begin] : mapped.folder_tensors(mapped.default_routing())) {
    copied += tensor.scalar_type() == at::kFloat ? tensor.nbytes() : 0;
  }
  CHECK(bytes_to_copy(config, Storage::kStored, at::kCPU) == copied);
}

TEST_CASE("keys and values grow with what is generated, rows with the prompt", "[model]") {
  ModelConfig config;
  config.layers = 3;
  config.hidden_size = config.intermediate_size = 8;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  // Keys and values, 3 layers, 1 head of width 4, 4 bytes each.
  CHECK(forward_bytes(config, {}, 0, 10, at::kCPU) == 2 * 3 * 1 * 4 * 4 * 10);
  // Of 50 tokens more. The stream and its norm of 8; 2 heads and 1 head of width 4, as queries,
  // keys and values and as what attention makes of them. A tenth more of all.
  const auto of_fifty = [&](const std::string& router) {
    const route::RouterSettings settings = route::parse_router(router);
    return forward_bytes(config, settings, 100, 10, at::kCPU) -
           forward_bytes(config, settings, 50, 10, at::kCPU);
  };
  constexpr uint64_t kAttention = 2 * (2 + 1) * 4;
  CHECK(of_fifty("top1") == 50 * 4 * (2 * 8 + kAttention) / 10 * 11);
  // A wide feed-forward holds more than attention: the activation, gate and up meet in the cache.
  config.intermediate_size = 100;
  CHECK(of_fifty("top1") == 50 * 4 * (2 * 8 + 100) / 10 * 11);
  // A mixture has the rows around its two experts and the sum of what they gave, beside attention.
  config.moe.emplace();
  config.moe->experts = 4;
  config.moe->expert_width = 100;
  CHECK(of_fifty("top2") == 50 * 4 * (3 * 8 + kAttention + 2 * (100 + 2 * 8)) / 10 * 11);
  CHECK(of_fifty("top1+ir") == of_fifty("top2"));
  // Gate, up and their product, the output and its share, beside what the experts gave.
  config.moe->shared_expert_width = 300;
  CHECK(of_fifty("top2") == 50 * 4 * (3 * 8 + kAttention + 3 * 300 + 3 * 8) / 10 * 11);
  CHECK(forward_bytes(config, {}, 5, 10, {at::kCUDA, 0}) == 0);
}

}  // namespace
}  // namespace moe::model
