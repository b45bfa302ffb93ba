// What is recalled is what would be computed again, bit for bit; what is of another model, routing
// or forward is not recalled.
#include "core/eval/scoring/response_cache.h"

#include <ATen/ATen.h>

#include <random>

#include "core/eval/scoring/score.h"
#include "tests/support/catch.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

// The tiny dense model as 8 experts in layers 0 and 2, with random routers.
void write_mixture(const std::filesystem::path& out) {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.std = 0.3});
  test::write_mixture(folder / "dense", out,
                      {.router = "top1+ir:cf=1", .router_std = 1.0, .ep_ranks = 2});
}

std::vector<Request> random_requests(size_t count) {
  std::mt19937_64 random(3);
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) {
    Request request;
    const size_t length = 4 + random() % 30;
    for (size_t t = 0; t < length; ++t) {
      request.tokens.push_back(static_cast<int64_t>(random() % 64));
    }
    request.scored = 2;
    requests.push_back(std::move(request));
  }
  return requests;
}

ScoreSettings settings_of(const std::string& router) {
  ScoreSettings settings;
  settings.routing = {route::parse_router(router), 2};
  settings.batch_tokens = settings.group_tokens = 60;
  return settings;
}

Scores run(const model::Llama& llama, const std::vector<Request>& requests, ScoreSettings settings,
           ResponseCache& cache) {
  cache.use(settings.routing);
  settings.cache = &cache;
  return score_requests(llama, requests, settings);
}

bool same(const Scores& a, const Scores& b) {
  return a.forwards == b.forwards && a.input_tokens == b.input_tokens &&
         std::equal(a.scores.begin(), a.scores.end(), b.scores.begin(), b.scores.end(),
                    [](const Score& x, const Score& y) {
                      return x.logprob == y.logprob && x.is_greedy == y.is_greedy &&
                             x.tokens == y.tokens;
                    }) &&
         std::equal(a.counters.begin(), a.counters.end(), b.counters.begin(), b.counters.end(),
                    [](const route::CounterValues& x, const route::CounterValues& y) {
                      return x.tokens == y.tokens && x.requests == y.requests &&
                             x.dropped_requests == y.dropped_requests &&
                             x.dropped_tokens == y.dropped_tokens &&
                             x.unserved_tokens == y.unserved_tokens && x.ir_tokens == y.ir_tokens &&
                             x.slots_total == y.slots_total && x.slots_used == y.slots_used &&
                             x.padding == y.padding && x.rows_sent == y.rows_sent &&
                             x.entropy_sum == y.entropy_sum &&
                             x.tokens_per_expert == y.tokens_per_expert &&
                             x.rank_dropped == y.rank_dropped && x.rank_ir == y.rank_ir;
                    });
}

struct World {
  TempDir folder;
  io::Checkpoint checkpoint;
  model::Llama llama;
  World()
      : checkpoint((write_mixture(folder / "moe"), folder / "moe")),
        llama(model::Llama::load(checkpoint)) {}
};

TEST_CASE("a run that recalls some forwards ends in the numbers of one that recalls none",
          "[eval]") {
  const World world;
  const auto requests = random_requests(40);
  for (const std::string router : {"top1+ir:cf=1", "top2:cf=inf", "topp:0.4"}) {
    CAPTURE(router);
    const ScoreSettings settings = settings_of(router);
    const Scores plain = score_requests(world.llama, requests, settings);
    REQUIRE(plain.forwards > 5);
    const auto file = world.folder / (router + ".cache");
    const io::Digest model = model_digest(world.checkpoint);
    {
      ResponseCache cache(file, model);
      CHECK(same(run(world.llama, requests, settings, cache), plain));
      CHECK(cache.hits() == 0);
    }
    // A kill left the first four forwards and half of a fifth.
    const std::string whole = test::read_file(file);
    size_t cut = 0;
    for (int line = 0; line < 5; ++line) {  // and the title
      cut = whole.find('\n', cut) + 1;
    }
    test::write_file(file, whole.substr(0, cut + 40));
    {
      ResponseCache cache(file, model);
      CHECK(same(run(world.llama, requests, settings, cache), plain));
      CHECK(cache.hits() > 0);
      CHECK(cache.hits() < 40);
    }
    ResponseCache cache(file, model);
    CHECK(same(run(world.llama, requests, settings, cache), plain));
    CHECK(cache.hits() == 40);
    CHECK(test::read_file(file).size() == whole.size());
  }
}

TEST_CASE("another routing, group, token or model recalls nothing", "[eval]") {
  const World world;
  const auto requests = random_requests(12);
  const io::Digest model = model_digest(world.checkpoint);
  const auto file = world.folder / "cache";
  const ScoreSettings settings = settings_of("top1:cf=1");
  {
    ResponseCache cache(file, model);
    run(world.llama, requests, settings, cache);
  }
  const auto recalled = [&](const ScoreSettings& other, const std::vector<Request>& asked,
                            const io::Digest& digest) {
    ResponseCache cache(file, digest);
    run(world.llama, asked, other, cache);
    return cache.hits();
  };
  CHECK(recalled(settings_of("top1:cf=2"), requests, model) == 0);
  CHECK(recalled(settings_of("top1+ir:cf=1"), requests, model) == 0);
  ScoreSettings ranks = settings;
  ranks.routing.ep_ranks = 4;
  CHECK(recalled(ranks, requests, model) == 0);
  ScoreSettings scale = settings;
  scale.routing.gate_scale = 2.0;
  CHECK(recalled(scale, requests, model) == 0);
  ScoreSettings group = settings;
  group.group_tokens = 10000;
  CHECK(recalled(group, requests, model) == 0);
  auto target = requests;  // the last token is no input
  for (auto& request : target) {
    request.tokens.back() ^= 1;
  }
  CHECK(recalled(settings, target, model) == 0);
  auto scored = requests;
  for (auto& request : scored) {
    request.scored = 1;
  }
  CHECK(recalled(settings, scored, model) == 0);
  CHECK(recalled(settings, requests, io::Digest{1, 2}) == 0);
  CHECK(recalled(settings, requests, model) == 12);
}

TEST_CASE("a model's digest follows its weights and its configuration, not its name", "[eval]") {
  const TempDir folder;
  const auto digest_of = [&](const std::string& name) {
    return model_digest(io::Checkpoint(folder / name));
  };
  test::write_tiny_checkpoint(folder / "a", {.seed = 1});
  test::write_tiny_checkpoint(folder / "b", {.seed = 2});
  CHECK_FALSE(digest_of("a") == digest_of("b"));
  const io::Digest before = digest_of("a");
  std::filesystem::rename(folder / "a", folder / "c");
  CHECK(digest_of("c") == before);
  const auto weights = folder / "c/model.safetensors";
  std::filesystem::last_write_time(
      weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(1));
  CHECK_FALSE(digest_of("c") == before);  // written again, to whatever content
}

TEST_CASE("generated answers come back, by prompt and by what ends them", "[eval]") {
  const TempDir folder;
  Generation generation;
  generation.until = {"\n"};
  {
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    cache.store_text({1, 2, 3}, generation, "line\n\"quoted\" \u00e9");
    cache.store_text({4}, generation, "\xff");  // no UTF-8: not kept
  }
  ResponseCache cache(folder / "cache", {1, 2});
  cache.use({});
  CHECK(cache.find_text({1, 2, 3}, generation) == "line\n\"quoted\" \u00e9");
  CHECK_FALSE(cache.find_text({4}, generation));
  CHECK_FALSE(cache.find_text({1, 2}, generation));
  generation.until = {"."};
  CHECK_FALSE(cache.find_text({1, 2, 3}, generation));
}

TEST_CASE("what was computed in another precision is not recalled", "[eval]") {
  const TempDir folder;
  const auto find = [&](const std::string& computed) {
    ResponseCache cache(folder / "cache", {1, 2}, computed);
    cache.use({});
    return cache.find_text({1}, {});
  };
  {
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    cache.store_text({1}, {}, "yes");
  }
  CHECK(find("float32 cpu") == "yes");
  CHECK_FALSE(find("bfloat16 cpu"));
  CHECK_FALSE(find("float32 cuda"));
}

TEST_CASE("lines that say something else are not used", "[eval]") {
  const TempDir folder;
  Generation generation;
  std::string key;
  {
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    cache.store_text({1}, generation, "yes");
    const std::string text = test::read_file(folder / "cache");
    key = text.substr(text.find("\"key\":\"") + 7, 32);
  }
  for (const std::string rest : {"\",\"answer\":7}", "\"}", "\",\"answer\":\"cut", "\",[[[["}) {
    std::filesystem::remove(folder / "cache");
    io::LineLog(folder / "cache", "moe responses 1").append("{\"key\":\"" + key + rest);
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    CHECK_FALSE(cache.find_text({1}, generation));
  }
  test::write_file(folder / "other", "{}\n");
  CHECK(test::user_error_of([&] { ResponseCache(folder / "other", {}); })
            .ends_with("other: does not begin with 'moe responses 1', so it is something else; "
                       "give another file"));
}

}  // namespace
}  // namespace moe::eval
