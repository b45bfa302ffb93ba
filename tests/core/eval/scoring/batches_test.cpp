#include "core/eval/scoring/batches.h"

#include "tests/support/catch.h"

namespace moe::eval {
namespace {

model::ModelConfig llama(int64_t width, int64_t inner, int64_t heads, int64_t head_dim) {
  model::ModelConfig config;
  config.hidden_size = width;
  config.intermediate_size = inner;
  config.heads = config.kv_heads = heads;
  config.head_dim = head_dim;
  return config;
}

TEST_CASE("a small model takes 4096 tokens at once, a large one what a gigabyte holds", "[eval]") {
  CHECK(auto_batch_tokens(llama(256, 704, 4, 64), {}) == 4096);
  // 4 * (4 * 4096 + 6 * 4096 + 3 * 11008 + 4096) = 312 KB a token: 3440 tokens in 1 GiB
  CHECK(layer_bytes_per_token(llama(4096, 11008, 32, 128), {}) == 312320);
  CHECK(auto_batch_tokens(llama(4096, 11008, 32, 128), {}) == 2048);
  CHECK(auto_batch_tokens(llama(65536, 262144, 512, 128), {}) == 512);
}

TEST_CASE("the rows of a token's experts count", "[eval]") {
  model::ModelConfig config = llama(4096, 11008, 32, 128);
  config.moe = model::MoeConfig{};
  config.moe->expert_width = 11008;
  route::RouterSettings router;
  router.k = 1;
  const int64_t one = layer_bytes_per_token(config, router);
  router.k = 2;
  CHECK(layer_bytes_per_token(config, router) == one + 4 * (3 * 11008 + 2 * 4096));
  CHECK(auto_batch_tokens(config, router) == 2048);
  router.k = 4;
  CHECK(auto_batch_tokens(config, router) == 1024);
}

}  // namespace
}  // namespace moe::eval
