// The certificate of an upcycled mixture: identical to the parent if the router preserves the
// function, different otherwise.

#include "core/upcycle/verify.h"

#include <optional>

#include "tests/core/upcycle/upcycled.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"

namespace moe::model {
namespace {

using namespace moe::test;

Certificate certificate_of(const std::string& router, std::optional<Foreign> kin = std::nullopt,
                           bool shared_expert = false) {
  const test::TempDir folder;
  if (kin) {
    test::write_foreign_checkpoint(
        folder / "dense",
        {.kind = *kin, .dense_layers = {}, .tiny = {.head_dim = 6, .tied = true}});
  } else {
    test::write_tiny_checkpoint(folder / "dense", {});
  }
  UpcycleSettings settings = upcycle_settings(folder / "moe", router);
  settings.shared_expert = shared_expert;
  const Upcycled pair(folder / "dense", settings);
  return verify_equality(pair.dense, pair.child, verify_text(pair.dense, "", 200));
}

}  // namespace

TEST_CASE("a mixture whose router preserves the function equals its parent to rounding",
          "[model]") {
  struct Case {
    const char* router;
    std::optional<Foreign> parent = {};
  };
  for (const auto& [router, parent] :
       {Case{"top1:cf=inf"}, Case{"top2:cf=inf"}, Case{"top1+ir:cf=0.25"},
        Case{"top2+ir+fr:cf=0.5"}, Case{"top2:cf=inf", Foreign::kMistral},
        Case{"top2:cf=inf", Foreign::kQwen2}, Case{"top2:cf=inf", Foreign::kQwen3}}) {
    CAPTURE(router, parent.has_value());
    const auto certificate = certificate_of(router, parent);
    CHECK(certificate.verdict == Verdict::kIdentical);
    CHECK(certificate.tokens == 200);
    CHECK(certificate.max_abs_logit_difference < 1e-5);  // f32 rounding on logits of order 1
    CHECK(certificate.words.starts_with("identical to the dense model"));
    CHECK(certificate.tolerance > 0);
    if (!parent) {
      CHECK(certificate.tolerance < 1e-4);
      CHECK(std::abs(certificate.mean_kl) < 1e-9);
    }
  }
}

TEST_CASE("a mixture with a shared expert has the bits of its parent for any router", "[model]") {
  for (const auto& [router, kin] : {std::pair("top1:cf=0.25", std::optional<Foreign>()),
                                    std::pair("relu:k=1", std::optional<Foreign>()),
                                    std::pair("topp:0.4", std::optional(Foreign::kMistral)),
                                    std::pair("top2:cf=inf", std::optional(Foreign::kQwen2))}) {
    CAPTURE(router, kin.has_value());
    const auto certificate = certificate_of(router, kin, /*shared_expert=*/true);
    CHECK(certificate.verdict == Verdict::kIdentical);
    CHECK(certificate.max_abs_logit_difference == 0);
    CHECK_THAT(certificate.words, contains_text("shared expert"));
  }
}

TEST_CASE("a router that drops tokens, or gates that do not sum to 1, are reported", "[model]") {
  const auto dropped = certificate_of("top1:cf=0.25");
  CHECK(dropped.verdict != Verdict::kIdentical);
  CHECK(dropped.dropped_share > 0.5);  // a quarter of the slots for all tokens
  CHECK(dropped.max_abs_logit_difference > 1e-4);
  CHECK_THAT(dropped.words, contains_text("dropped"));
  CHECK((dropped.mean_kl < kCloseKl) == (dropped.verdict == Verdict::kClose));
  const auto json = to_json(dropped);
  CHECK(json["preserves_function"] == false);
  CHECK(json["verdict"] == to_string(dropped.verdict));
  CHECK(json["close_below_kl"] == kCloseKl);
  const auto gates = certificate_of("topp:0.4");
  CHECK(gates.verdict != Verdict::kIdentical);
  CHECK(gates.max_abs_logit_difference > 1e-4);
}

TEST_CASE("a gate_scale on weights that sum to 1 is reported", "[model]") {
  const test::TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {});
  UpcycleSettings settings = upcycle_settings(folder / "moe");
  settings.gate_scale = 2.0;
  const Upcycled pair(folder / "dense", settings);
  const auto text = verify_text(pair.dense, "", 100);
  const auto scaled = verify_equality(pair.dense, pair.child, text);
  CHECK(scaled.verdict != Verdict::kIdentical);
  CHECK(scaled.gate_scale == 2.0);
  CHECK(scaled.max_abs_logit_difference > 1e-4);
  CHECK_THAT(scaled.words, contains_text("gate_scale 2"));
  const auto without = verify_equality(pair.dense, pair.child, text, 1.0);
  CHECK(without.verdict == Verdict::kIdentical);
  CHECK(without.max_abs_logit_difference < 1e-5);
}

}  // namespace moe::model
