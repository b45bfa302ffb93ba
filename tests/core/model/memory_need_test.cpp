// Memory estimates against the tensors that loading allocates and against formulas by hand.

#include "core/model/llama/memory_need.h"

#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::model {
namespace {

TEST_CASE("bytes_to_copy is the size of the weights that loading allocates", "[model]") {
  const test::TempDir dir;
  const test::TinyCheckpoint bf16{.dtype = io::DType::kBF16};
  test::write_tiny_checkpoint(dir / "dense", bf16);
  test::write_foreign_checkpoint(
      dir / "shared expert",
      {.kind = test::Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 20, .tiny = bf16});
  for (const char* name : {"dense", "shared expert"}) {
    INFO(name);
    const io::Checkpoint checkpoint(dir / name);
    const ModelConfig config = parse_config(checkpoint.config(), checkpoint.config_name());
    uint64_t copied = 0;  // norms, routers and the gates of shared experts; matrices are mapped
    const Llama mapped = Llama::load(checkpoint, {}, at::kCPU, Storage::kStored);
    for (const auto& [info, tensor, begin] : mapped.folder_tensors(mapped.default_routing())) {
      copied += tensor.scalar_type() == at::kFloat ? tensor.nbytes() : 0;
    }
    CHECK(copied > 0);
    CHECK(bytes_to_copy(config, Storage::kStored, at::kCPU) == copied);
    CHECK(bytes_to_copy(config, Storage::kStored, {at::kCUDA, 0}) == 0);
  }
  const io::Checkpoint dense(dir / "dense");
  const Llama wide = Llama::load(dense);
  uint64_t all = 0;
  for (const auto& parameter : wide.parameters()) {
    all += parameter.tensor.nbytes();
  }
  CHECK(bytes_to_copy(wide.config(), Storage::kF32, at::kCPU) == all);
}

TEST_CASE(
    "forward_bytes grows with generated tokens by their keys and values, with the prompt by its "
    "rows",
    "[model]") {
  ModelConfig config;
  config.layers = 3;
  config.hidden_size = config.intermediate_size = 8;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  // Keys and values, 3 layers, 1 head of width 4, 4 bytes each.
  CHECK(forward_bytes(config, {}, 0, 10, at::kCPU) == 2 * 3 * 1 * 4 * 4 * 10);
  const auto bytes_of_50 = [&](const std::string& router) {
    const route::RouterSettings settings = route::parse_router(router);
    return forward_bytes(config, settings, 100, 10, at::kCPU) -
           forward_bytes(config, settings, 50, 10, at::kCPU);
  };
  // The stream and its norm of width 8; queries, keys and values (2 heads and 1 head of width 4)
  // and the output of attention; 10 % more of the sum.
  const uint64_t attention = bytes_of_50("top1");
  CHECK(attention == 50 * 4 * (2 * 8 + 2 * (2 + 1) * 4) / 10 * 11);
  config.intermediate_size = 100;
  const uint64_t wide = bytes_of_50("top1");
  config.moe.emplace();
  config.moe->experts = 4;
  config.moe->expert_width = 100;
  const uint64_t experts = bytes_of_50("top2");
  CHECK(bytes_of_50("top1+ir") == experts);
  config.moe->shared_expert_width = 300;
  const uint64_t shared = bytes_of_50("top2");
  CHECK((attention < wide && wide < experts && experts < shared));
  CHECK(forward_bytes(config, {}, 5, 10, {at::kCUDA, 0}) == 0);
}

}  // namespace
}  // namespace moe::model
