#pragma once
// Small models and random requests for tests of scores.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/eval/scoring/score.h"
#include "tests/support/mixture.h"

namespace moe::eval {

inline model::Llama dense() {
  const test::TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.std = 0.3});
  return model::Llama::load(io::Checkpoint(folder / "dense"));
}

// Writes the dense model as 8 equal experts in layers 0 and 2. The routers are random, so that a
// capacity drops tokens.
inline void write_mixture(const std::filesystem::path& out, const std::string& router) {
  const test::TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.std = 0.3});
  test::write_mixture(folder / "dense", out, {.router = router, .router_std = 1.0, .ep_ranks = 2});
}

inline model::Llama mixture(const std::string& router) {
  const test::TempDir folder;
  write_mixture(folder / "moe", router);
  return model::Llama::load(io::Checkpoint(folder / "moe"));
}

// Requests of mixed lengths: the first has one input token, the second as many as the window.
inline std::vector<Request> random_requests(size_t count, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(count);
  for (size_t i = 0; i < count; ++i) {
    const auto length = static_cast<int64_t>(i == 0 ? 2 : i == 1 ? 129 : 2 + random() % 40);
    for (int64_t t = 0; t < length; ++t) {
      requests[i].tokens.push_back(static_cast<int64_t>(random() % 64));
    }
    requests[i].scored =
        1 +
        static_cast<int64_t>(random() % static_cast<uint64_t>(std::min<int64_t>(12, length - 1)));
  }
  return requests;
}

// Returns true if all numbers are equal, bit for bit.
inline bool same(const Scores& a, const Scores& b) {
  return a.forwards == b.forwards && a.input_tokens == b.input_tokens &&
         std::equal(a.scores.begin(), a.scores.end(), b.scores.begin(), b.scores.end(),
                    [](const Score& x, const Score& y) {
                      return x.logprob == y.logprob && x.is_greedy == y.is_greedy &&
                             x.tokens == y.tokens;
                    }) &&
         std::equal(a.counters.begin(), a.counters.end(), b.counters.begin(), b.counters.end(),
                    [](const route::CounterValues& x, const route::CounterValues& y) {
                      return route::pack_counters(x) == route::pack_counters(y);
                    });
}

}  // namespace moe::eval
