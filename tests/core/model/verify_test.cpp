// The certificate against what it must say: nothing differs when nothing is dropped, and what
// differs is shown.

#include "core/model/verify.h"

#include "core/model/upcycle.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace {

moe::model::Certificate certificate_of(const std::string& router) {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  moe::model::UpcycleSettings settings;
  settings.out = folder / "moe";
  settings.experts = 4;
  settings.router = moe::route::parse_router(router);
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
    CHECK(certificate.preserves);
    CHECK(certificate.tokens == 200);
    CHECK(certificate.max_abs_logit_difference < 1e-5);  // f32 rounding on logits of order 1
    CHECK(std::abs(certificate.mean_kl) < 1e-9);
  }
}

TEST_CASE("a router that drops tokens is shown to differ", "[model]") {
  const auto certificate = certificate_of("top1:cf=0.25");
  CHECK_FALSE(certificate.preserves);
  CHECK(certificate.dropped_share > 0.5);  // a quarter of the slots for all tokens
  CHECK(certificate.max_abs_logit_difference > 1e-4);
  CHECK(certificate.words.find("dropped") != std::string::npos);
}

TEST_CASE("gates that do not sum to one are shown to differ", "[model]") {
  CHECK_FALSE(certificate_of("topp:0.4").preserves);
  CHECK(certificate_of("topp:0.4").max_abs_logit_difference > 1e-4);
}
