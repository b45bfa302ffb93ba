// The certificate against what it must say: nothing differs when nothing is dropped, and what
// differs is shown.

#include "core/model/convert/verify.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "core/model/convert/upcycle.h"
#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace {

moe::model::Certificate certificate_of(const std::string& router,
                                       std::optional<moe::test::Foreign> kin = std::nullopt,
                                       bool shared_expert = false) {
  const moe::test::TempDir folder;
  if (kin) {
    moe::test::write_foreign_checkpoint(
        folder / "dense",
        {.kind = *kin, .dense_layers = {}, .tiny = {.head_dim = 6, .tied = true}});
  } else {
    moe::test::write_tiny_checkpoint(folder / "dense", {});
  }
  moe::model::UpcycleSettings settings;
  settings.out = folder / "moe";
  settings.experts = 4;
  settings.router = moe::route::parse_router(router);
  settings.shared_expert = shared_expert;
  const moe::io::Checkpoint parent(folder / "dense");
  moe::model::upcycle(parent, moe::model::plan_upcycle(parent, settings), settings);
  const moe::io::Checkpoint child(folder / "moe");
  return moe::model::verify_equality(parent, child, moe::model::verify_text(parent, "", 200));
}

}  // namespace

TEST_CASE("a dropless top-k child equals its parent to rounding", "[model]") {
  for (const auto* router :
       {"top1:cf=inf", "top2:cf=inf", "top1+ir:cf=0.25", "top2+ir+fr:cf=0.5"}) {
    CAPTURE(router);
    const auto certificate = certificate_of(router);
    CHECK(certificate.verdict == moe::model::Verdict::kIdentical);
    CHECK(certificate.tokens == 200);
    CHECK(certificate.max_abs_logit_difference < 1e-5);  // f32 rounding on logits of order 1
    CHECK(std::abs(certificate.mean_kl) < 1e-9);
  }
}

TEST_CASE("a child of each kin of LLaMA equals its parent to rounding", "[model]") {
  using moe::test::Foreign;
  for (const auto kin : {Foreign::kMistral, Foreign::kQwen2, Foreign::kQwen3}) {
    CAPTURE(static_cast<int>(kin));
    const auto certificate = certificate_of("top2:cf=inf", kin);
    CHECK(certificate.verdict == moe::model::Verdict::kIdentical);
    CHECK(certificate.max_abs_logit_difference < 1e-5);  // as above
  }
}

TEST_CASE("a child with a shared expert is its parent to the bit, whatever its router does",
          "[model]") {
  using moe::test::Foreign;
  for (const auto* router :
       {"top1:cf=inf", "top2:cf=inf", "top1:cf=0.25", "topp:0.4", "relu:k=1"}) {
    for (const std::optional<Foreign> kin :
         {std::optional<Foreign>(), {Foreign::kMistral}, {Foreign::kQwen2}}) {
      CAPTURE(router, kin.has_value());
      const auto certificate = certificate_of(router, kin, /*shared_expert=*/true);
      CHECK(certificate.verdict == moe::model::Verdict::kIdentical);
      CHECK(certificate.max_abs_logit_difference == 0);
      CHECK(certificate.words.find("the shared expert is the dense feed-forward") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a router that drops tokens is shown to differ", "[model]") {
  const auto certificate = certificate_of("top1:cf=0.25");
  CHECK(certificate.verdict != moe::model::Verdict::kIdentical);
  CHECK(certificate.dropped_share > 0.5);  // a quarter of the slots for all tokens
  CHECK(certificate.max_abs_logit_difference > 1e-4);
  CHECK(certificate.words.find("dropped") != std::string::npos);
}

TEST_CASE("gates that do not sum to one are shown to differ", "[model]") {
  CHECK(certificate_of("topp:0.4").verdict != moe::model::Verdict::kIdentical);
  CHECK(certificate_of("topp:0.4").max_abs_logit_difference > 1e-4);
}

namespace {

// Logits of `model` for 96 tokens in two sequences.
at::Tensor logits_of(const moe::model::Llama& model, const moe::model::RoutingOptions& routing) {
  const at::NoGradGuard no_gradients;
  const at::Tensor ids = (at::arange(96, at::kLong) * 29 + 3).remainder(64);
  return model.head(model.forward({ids, {60, 36}}, routing).hidden);
}

}  // namespace

// IR serves every token that capacity left without its experts, and all weights of a token sum to
// 1: with equal experts the layer is the dense one, whatever the router says. The bound is the one
// that the certificate of a real model must meet; f32 rounding of a sum of at most 4 weighted
// copies is far below it.
TEST_CASE("an upcycled model with IR equals its parent at any capacity, router and ranks",
          "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  const moe::io::Checkpoint parent(folder / "dense");
  const auto dense = moe::model::Llama::load(parent);
  const at::Tensor expected = logits_of(dense, dense.default_routing());
  for (const int64_t seed : {1, 2, 3}) {
    for (const double std : {0.02, 1.0}) {
      moe::model::UpcycleSettings settings;
      settings.out = folder / "moe";
      settings.router = moe::route::parse_router("top1+ir");
      settings.layers = "all";
      settings.seed = seed;
      settings.router_std = std;
      settings.force = true;
      moe::model::upcycle(parent, moe::model::plan_upcycle(parent, settings), settings);
      const auto child = moe::model::Llama::load(moe::io::Checkpoint(folder / "moe"));
      for (const char* router : {"top1+ir", "top2+ir+fr"}) {
        for (const char* cf : {"0.25", "0.5", "1", "2"}) {
          for (const int64_t ranks : {1, 2, 4, 8}) {
            CAPTURE(seed, std, router, cf, ranks);
            const auto routed = moe::route::parse_router(fmt::format("{}:cf={}", router, cf));
            const at::Tensor actual = logits_of(child, {routed, ranks});
            CHECK((actual - expected).abs().max().item<double>() < 1e-4);
          }
        }
      }
      // The same without IR drops tokens: what is compared above can differ.
      const auto plain = moe::route::parse_router("top1:cf=0.25");
      CHECK((logits_of(child, {plain, 8}) - expected).abs().max().item<double>() > 1e-2);
    }
  }
}

TEST_CASE("a gate_scale on weights that sum to 1 is shown to differ", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  moe::model::UpcycleSettings settings;
  settings.out = folder / "moe";
  settings.router = moe::route::parse_router("top2:cf=inf");
  settings.gate_scale = 2.0;
  const moe::io::Checkpoint parent(folder / "dense");
  moe::model::upcycle(parent, moe::model::plan_upcycle(parent, settings), settings);
  const moe::io::Checkpoint child(folder / "moe");
  const auto text = moe::model::verify_text(parent, "", 100);
  const auto scaled = moe::model::verify_equality(parent, child, text);
  CHECK(scaled.verdict != moe::model::Verdict::kIdentical);
  CHECK(scaled.gate_scale == 2.0);
  CHECK(scaled.max_abs_logit_difference > 1e-4);
  CHECK(scaled.words.find("gate_scale 2 multiplies weights that sum to 1 already") !=
        std::string::npos);
  const auto without = moe::model::verify_equality(parent, child, text, 1.0);
  CHECK(without.verdict == moe::model::Verdict::kIdentical);
  CHECK(without.max_abs_logit_difference < 1e-5);
}

TEST_CASE("the verdict follows from what is measured, and its bounds are stated", "[model]") {
  using moe::model::Verdict;
  const auto identical = certificate_of("top2:cf=inf");
  CHECK(identical.words.starts_with("identical to the dense model"));
  CHECK(identical.tolerance > 0);
  CHECK(identical.tolerance < 1e-4);  // logits of order 1
  const auto dropped = certificate_of("top1:cf=0.25");
  CHECK(dropped.verdict != Verdict::kIdentical);
  CHECK((dropped.mean_kl < moe::model::kCloseKl) == (dropped.verdict == Verdict::kClose));
  const auto json = to_json(dropped);
  CHECK(json["preserves_function"] == false);
  CHECK(json["verdict"] == to_string(dropped.verdict));
  CHECK(json["close_below_kl"] == moe::model::kCloseKl);
  // Twice the width or the layers, or logits of twice the size, may round more; a dense model not.
  moe::model::ModelConfig config;
  config.hidden_size = 64;
  CHECK(moe::model::identical_tolerance(config, 1) == 0);
  config.moe.emplace();
  config.moe->router = moe::route::parse_router("top2");
  config.moe->experts = 8;
  config.moe->expert_width = 128;
  config.moe->layers = {0};
  const double one = moe::model::identical_tolerance(config, 1);
  CHECK(moe::model::identical_tolerance(config, 2) == 2 * one);
  config.moe->layers = {0, 1, 2, 3};
  CHECK(moe::model::identical_tolerance(config, 1) == Approx(2 * one));
}
