// Cached responses equal computed ones bit for bit; other models, routings and forwards do not hit.
#include "core/eval/scoring/response_cache.h"

#include "tests/core/eval/scoring/score_world.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

// Requests of which the last two tokens are scored.
std::vector<Request> cached_requests(size_t count) {
  std::vector<Request> requests = random_requests(count + 2);
  requests.erase(requests.begin(), requests.begin() + 2);  // the shortest and the longest
  for (Request& request : requests) {
    request.tokens.insert(request.tokens.end(), {1, 2});
    request.scored = 2;
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

struct World {
  TempDir folder;
  io::Checkpoint checkpoint;
  model::Llama llama;
  World()
      : checkpoint((write_mixture(folder / "moe", "top1+ir:cf=1"), folder / "moe")),
        llama(model::Llama::load(checkpoint)) {}
};

TEST_CASE("a run with some cached forwards gives the scores of one without", "[eval]") {
  const World world;
  const auto requests = cached_requests(40);
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
    // The file of a killed run: four forwards and half of a fifth.
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

TEST_CASE("another routing, group, token or model does not hit the cache", "[eval]") {
  const World world;
  const auto requests = cached_requests(12);
  const io::Digest model = model_digest(world.checkpoint);
  const auto file = world.folder / "cache";
  const ScoreSettings settings = settings_of("top1:cf=1");
  const auto count_hits = [&](const ScoreSettings& other, const std::vector<Request>& asked,
                              const io::Digest& digest) {
    ResponseCache cache(file, digest);
    run(world.llama, asked, other, cache);
    return cache.hits();
  };
  CHECK(count_hits(settings, requests, model) == 0);
  const auto changed = [&](auto change) {
    ScoreSettings other = settings;
    change(other);
    return count_hits(other, requests, model);
  };
  CHECK(count_hits(settings_of("top1:cf=2"), requests, model) == 0);
  CHECK(count_hits(settings_of("top1+ir:cf=1"), requests, model) == 0);
  CHECK(changed([](auto& s) { s.routing.ep_ranks = 4; }) == 0);
  CHECK(changed([](auto& s) { s.routing.gate_scale = 2.0; }) == 0);
  CHECK(changed([](auto& s) { s.group_tokens = 10000; }) == 0);
  auto target = requests;  // the last token is not an input
  for (auto& request : target) {
    request.tokens.back() ^= 1;
  }
  CHECK(count_hits(settings, target, model) == 0);
  auto scored = requests;
  for (auto& request : scored) {
    request.scored = 1;
  }
  CHECK(count_hits(settings, scored, model) == 0);
  CHECK(count_hits(settings, requests, io::Digest{1, 2}) == 0);
  CHECK(count_hits(settings, requests, model) == 12);
}

TEST_CASE("a model's digest follows its weights and its configuration, not its name", "[eval]") {
  const TempDir folder;
  const auto compute_digest = [&](const std::string& name) {
    return model_digest(io::Checkpoint(folder / name));
  };
  test::write_tiny_checkpoint(folder / "a", {.seed = 1});
  test::write_tiny_checkpoint(folder / "b", {.seed = 2});
  CHECK_FALSE(compute_digest("a") == compute_digest("b"));
  const io::Digest before = compute_digest("a");
  std::filesystem::rename(folder / "a", folder / "c");
  CHECK(compute_digest("c") == before);
  const auto weights = folder / "c/model.safetensors";
  std::filesystem::last_write_time(
      weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(1));
  CHECK_FALSE(compute_digest("c") == before);  // the file was written again
}

TEST_CASE("generated answers are cached by prompt, stop words and precision", "[eval]") {
  const TempDir folder;
  Generation generation;
  generation.until = {"\n"};
  {
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    cache.store_answer({1, 2, 3}, generation, "line\n\"quoted\" \u00e9");
    cache.store_answer({4}, generation, "\xff");  // not UTF-8: not stored
  }
  const auto find = [&](const std::vector<int64_t>& prompt, const std::string& computed) {
    ResponseCache cache(folder / "cache", {1, 2}, computed);
    cache.use({});
    return cache.find_answer(prompt, generation);
  };
  CHECK(find({1, 2, 3}, "float32 cpu") == "line\n\"quoted\" \u00e9");
  CHECK_FALSE(find({4}, "float32 cpu"));
  CHECK_FALSE(find({1, 2}, "float32 cpu"));
  CHECK_FALSE(find({1, 2, 3}, "bfloat16 cpu"));
  CHECK_FALSE(find({1, 2, 3}, "float32 cuda"));
  generation.until = {"."};
  CHECK_FALSE(find({1, 2, 3}, "float32 cpu"));
}

TEST_CASE("invalid lines of the cache are ignored", "[eval]") {
  const TempDir folder;
  Generation generation;
  std::string key;
  {
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    cache.store_answer({1}, generation, "yes");
    const std::string text = test::read_file(folder / "cache");
    key = text.substr(text.find("\"key\":\"") + 7, 32);
  }
  for (const std::string rest : {"\",\"answer\":7}", "\"}", "\",\"answer\":\"cut", "\",[[[["}) {
    std::filesystem::remove(folder / "cache");
    io::LineLog(folder / "cache", "moe responses 1").append("{\"key\":\"" + key + rest);
    ResponseCache cache(folder / "cache", {1, 2});
    cache.use({});
    CHECK_FALSE(cache.find_answer({1}, generation));
  }
  test::write_file(folder / "other", "{}\n");
  CHECK(test::user_error_of([&] {
          ResponseCache(folder / "other", {});
        }).starts_with((folder / "other").string()));
}

}  // namespace
}  // namespace moe::eval
