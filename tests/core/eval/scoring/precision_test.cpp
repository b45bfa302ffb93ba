// Scores of products in bf16 against those in f32, on the CPU: the path that a GPU takes by default
// (core/model/config/compute.h), but for where its matrices lie.

#include <ATen/ATen.h>

#include <cmath>
#include <random>

#include "core/eval/scoring/score.h"
#include "tests/support/catch.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::eval {
namespace {

// bf16 rounds to 8 bits, by at most 2^-9 of a number. Some 30 roundings lie behind each other: in
// each of 3 layers those of the norm, q k v, attention, its output, the norm, gate and up, their
// product and down, on the way and in the operands; then the head. They add up in a root of
// squares: logits are off by this share of their root mean square.
const double kLogitShare = std::sqrt(30.0) / 512;
// log p = z_t - logsumexp(z): twice the largest error of a logit, which of 64 normal ones is rarely
// above 3.5 deviations.
constexpr double kDeviations = 2 * 3.5;

std::vector<Request> some_requests() {
  std::mt19937_64 random(9);
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request request;
    for (size_t t = 0; t < 3 + random() % 30; ++t) {
      request.tokens.push_back(static_cast<int64_t>(random() % 64));
    }
    request.scored = 1 + static_cast<int64_t>(random() % 2);
    requests.push_back(std::move(request));
  }
  return requests;
}

double logit_size(const model::Llama& llama) {
  const at::Tensor ids = at::arange(60, at::kLong);
  const at::Tensor logits = llama.head(llama.forward({ids, {60}}, llama.default_routing()).hidden);
  return logits.square().mean().sqrt().item<double>();
}

}  // namespace

TEST_CASE("products in bf16 score what those in f32 do, within the roundings of bf16", "[eval]") {
  for (const auto dtype : {io::DType::kF32, io::DType::kF16, io::DType::kBF16}) {
    // Copies of one expert whose gates sum to 1: what bf16 sends elsewhere comes out the same.
    for (const bool is_mixture : {false, true}) {
      CAPTURE(static_cast<int>(dtype), is_mixture);
      const test::TempDir folder;
      test::write_tiny_checkpoint(folder / "m", {.dtype = dtype, .std = 0.3});
      std::filesystem::path name = folder / "m";
      if (is_mixture) {
        name = folder / "moe";
        test::write_mixture(folder / "m", name, {.router = "top2:cf=inf", .router_std = 1.0});
      }
      const io::Checkpoint checkpoint(name);
      const auto load = [&](model::Precision precision) {
        return model::Llama::load(checkpoint, {}, at::kCPU, model::Storage::kStored, {precision});
      };
      const model::Llama f32 = load(model::Precision::kF32), bf16 = load(model::Precision::kBf16);
      CHECK(bf16.product_type() == at::kBFloat16);
      ScoreSettings settings;
      settings.routing = f32.default_routing();
      const auto truth = score_requests(f32, some_requests(), settings).scores;
      const auto scores = score_requests(bf16, some_requests(), settings).scores;
      REQUIRE(scores.size() == truth.size());
      const double most = kDeviations * kLogitShare * logit_size(f32);
      double sum = 0;
      for (size_t i = 0; i < truth.size(); ++i) {
        const double off = std::abs(scores[i].logprob - truth[i].logprob);
        CHECK(off < most * static_cast<double>(truth[i].tokens));
        sum += off;
      }
      CHECK(sum > 1e-3);  // they are not the numbers of f32
    }
  }
}

}  // namespace moe::eval
