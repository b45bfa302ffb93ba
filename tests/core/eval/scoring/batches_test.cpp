#include "core/eval/scoring/requests.h"
#include "core/model/llama/memory_need.h"
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
  CHECK(model::layer_bytes_per_token(llama(4096, 11008, 32, 128), {}) == 312320);
  CHECK(auto_batch_tokens(llama(4096, 11008, 32, 128), {}) == 2048);
  CHECK(auto_batch_tokens(llama(65536, 262144, 512, 128), {}) == 512);
}

TEST_CASE("the rows of a token's experts count", "[eval]") {
  model::ModelConfig config = llama(4096, 11008, 32, 128);
  config.moe = model::MoeConfig{};
  config.moe->expert_width = 11008;
  route::RouterSettings router;
  router.k = 1;
  const int64_t one = model::layer_bytes_per_token(config, router);
  router.k = 2;
  CHECK(model::layer_bytes_per_token(config, router) == one + 4 * (3 * 11008 + 2 * 4096));
  CHECK(auto_batch_tokens(config, router) == 2048);
  router.k = 4;
  CHECK(auto_batch_tokens(config, router) == 1024);
}

TEST_CASE("weights that memory cannot hold are read for many tokens at a time", "[eval]") {
  const uint64_t gib = uint64_t{1} << 30;
  model::ModelConfig config = llama(4096, 11008, 32, 128);
  config.moe = model::MoeConfig{};
  config.moe->expert_width = 11008;
  config.moe->experts = 8;
  route::RouterSettings router;
  router.k = 2;
  CHECK(auto_batch_tokens(config, router, {}) == 2048);  // not mapped
  CHECK(auto_batch_tokens(config, router, {24 * gib, 24 * gib}) == 2048);
  CHECK(auto_batch_tokens(config, router, {25 * gib, 24 * gib}) == 8192);  // of 16384: a quarter
  CHECK(auto_batch_tokens(config, router, {99 * gib, 98 * gib}) == 16384);
  CHECK(auto_batch_tokens(config, router, {9 * gib, gib}) == 2048);  // never fewer
  // A dense one has all rows in one product already.
  CHECK(auto_batch_tokens(llama(256, 704, 4, 64), {}, {2 * gib, gib}) == 4096);
  CHECK(auto_batch_tokens(llama(4096, 11008, 32, 128), {}, {25 * gib, 24 * gib}) == 4096);
}

}  // namespace
}  // namespace moe::eval
