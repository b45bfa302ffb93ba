// Scores on a GPU against those of the CPU. In a build without CUDA the GPU is an emulated one
// (tests/support/emulated_cuda).

#include "core/eval/scoring/score.h"

#include <ATen/ATen.h>

#include <random>

#include "tests/support/gpu.h"
#include "tests/support/mixture.h"

namespace moe::eval {
namespace {

// Sums of at most 64 terms in another order, 3 layers deep, of logits of order 1, over up to 12
// tokens: 64 * 2^-24 * a few * 12.
constexpr double kTolerance = 1e-4;

// Returns questions with a context and four choices each, of mixed lengths.
std::vector<Request> questions() {
  std::mt19937_64 random(7);
  const auto token = [&] { return static_cast<int64_t>(random() % 64); };
  std::vector<Request> requests;
  for (int question = 0; question < 3; ++question) {
    std::vector<int64_t> context(5 + random() % 30);
    std::generate(context.begin(), context.end(), token);
    for (int choice = 0; choice < 4; ++choice) {
      Request request;
      request.tokens = context;
      request.scored = 1 + static_cast<int64_t>(random() % 9);
      for (int64_t i = 0; i < request.scored; ++i) {
        request.tokens.push_back(token());
      }
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

}  // namespace

TEST_CASE("scores and counters on a GPU are those of the CPU", "[eval][gpu]") {
  MOE_NEED_GPU();
  for (const std::string router : {"", "top1+ir+fr", "topp:0.5"}) {
    INFO("router '" << router << "'");
    const test::TempDir folder;
    test::write_tiny_checkpoint(folder / "dense", {.layers = 2, .std = 0.3});
    std::filesystem::path name = folder / "dense";
    if (!router.empty()) {
      name = folder / "moe";
      test::write_mixture(folder / "dense", name,
                          {.router = router, .experts = 4, .router_std = 1.0, .ep_ranks = 2});
    }
    const auto scored = [&](at::Device device) {
      const auto llama = model::Llama::load(io::Checkpoint(name), {}, device);
      ScoreSettings settings;
      settings.routing = llama.default_routing();
      return score_requests(llama, questions(), settings);
    };
    const Scores gpu = scored(test::kGpu), host = scored(at::kCPU);
    REQUIRE(gpu.scores.size() == host.scores.size());
    for (size_t i = 0; i < host.scores.size(); ++i) {
      CHECK(std::abs(gpu.scores[i].logprob - host.scores[i].logprob) < kTolerance);
      CHECK(gpu.scores[i].is_greedy == host.scores[i].is_greedy);
    }
    REQUIRE(gpu.counters.size() == host.counters.size());
    for (size_t layer = 0; layer < host.counters.size(); ++layer) {
      CHECK(gpu.counters[layer].tokens_per_expert == host.counters[layer].tokens_per_expert);
    }
  }
}

}  // namespace moe::eval
