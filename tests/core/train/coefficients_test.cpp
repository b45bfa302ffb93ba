#include "core/train/config/losses.h"
#include "tests/support/catch.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using route::parse_router;

namespace {

model::MoeConfig folder(const std::string& router) {
  model::MoeConfig moe;
  moe.router = parse_router(router);
  moe.experts = 8;
  moe.lb_coef = 0.5;
  moe.entropy_coef = 0.25;
  return moe;
}

TrainSettings resolved(const std::string& stored, const std::string& router,
                       TrainSettings settings = {}, std::optional<double> lambda = {}) {
  model::MoeConfig moe = folder(stored);
  moe.lambda = lambda;
  route::ResolvedRouter run{parse_router(router), 1, {}, false};
  run.names_lambda0 = router.find("lambda0") != std::string::npos;
  resolve_coefficients(settings, moe, run);
  return settings;
}

std::string words(const std::string& router, TrainSettings settings = {}) {
  return describe_losses(resolved(router, router, std::move(settings)), parse_router(router), 8);
}

}  // namespace

TEST_CASE("a coefficient is the flag's, else the folder's, else the router's default", "[train]") {
  CHECK(resolved("top2", "top1").lb_coef == 0.5);
  CHECK(resolved("topp:0.4", "top1").lb_coef == 0.01);
  CHECK(resolved("topp:0.4", "topp:0.3").entropy_coef == 0.25);
  CHECK(resolved("top1", "topp:0.4").entropy_coef == 1e-4);
  TrainSettings flags;
  flags.lb_coef = 0;
  flags.entropy_coef = 0.125;
  CHECK(resolved("topp:0.4", "topp:0.4", flags).lb_coef == 0);
  CHECK(resolved("topp:0.4", "topp:0.4", flags).entropy_coef == 0.125);
}

TEST_CASE("z-loss and balance within sequences are off until a flag or the folder says otherwise",
          "[train]") {
  CHECK_FALSE(resolved("top2", "top1").z_coef);
  CHECK_FALSE(resolved("top2", "top1").seq_lb_coef);
  const auto resolved_of = [](const std::string& router, std::optional<double> flag) {
    model::MoeConfig moe = folder("top2");
    moe.z_coef = 0.25;
    moe.seq_lb_coef = 0.125;
    TrainSettings settings;
    settings.z_coef = settings.seq_lb_coef = flag;
    resolve_coefficients(settings, moe, {parse_router(router), 1, {}, false});
    return std::pair(settings.z_coef, settings.seq_lb_coef);
  };
  using Both = std::pair<std::optional<double>, std::optional<double>>;
  CHECK((resolved_of("top1", {}) == Both(0.25, 0.125)));
  CHECK((resolved_of("top1", 0.5) == Both(0.5, 0.5)));
  CHECK((resolved_of("top1", 0) == Both(0, 0)));  // said, or the folder's would come back
  for (const char* router : {"topp:0.4", "expert-choice", "relu:k=1"}) {  // other families
    CHECK((resolved_of(router, {}) == Both()));
  }
  TrainSettings flags;
  flags.z_coef = 0.001;
  flags.seq_lb_coef = 0.0001;
  CHECK(words("top1", flags) ==
        "language model + 0.5 x load balance (of first choices) + 0.001 x z-loss + 0.0001 x load "
        "balance within each sequence");
}

TEST_CASE("a bias takes the place of the load-balance loss unless a coefficient is said",
          "[train]") {
  CHECK(resolved("top2", "top2:bias=0.001").lb_coef == 0);
  CHECK(resolved("top2:bias=0.01", "top2:bias=0.001").lb_coef == 0.5);  // what was trained with
  CHECK(resolved("top2:bias=0.01", "top2").lb_coef == 0.01);
  TrainSettings flags;
  flags.lb_coef = 0.125;
  CHECK(resolved("top2", "top2:bias=0.001", flags).lb_coef == 0.125);
  CHECK(route::default_lb_coef(parse_router("top2:bias=0")) == 0);
}

TEST_CASE("lambda is the flag's, else a named lambda0, else the folder's, else lambda0",
          "[train]") {
  CHECK(resolved("relu:k=1", "relu:k=1").lambda == 1e-8);
  CHECK(resolved("relu:k=1", "relu:k=1", {}, 0.75).lambda == 0.75);
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", {}, 0.75).lambda == 0.5);
  TrainSettings flags;
  flags.lambda = 0.25;
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", flags, 0.75).lambda == 0.25);
}

TEST_CASE("each router says which losses are in force and which are off", "[train]") {
  CHECK(words("top1+ir") == "language model + 0.5 x load balance (of first choices)");
  CHECK(words("top2:lb=selected") == "language model + 0.5 x load balance (of selected experts)");
  CHECK(words("topp:0.4") ==
        "language model + 0.5 x load balance (of selected experts) + 0.25 x entropy");
  TrainSettings off;
  off.lb_coef = 0;
  CHECK(words("top1", off) ==
        "language model; load balance (of first choices) is off (coefficient 0)");
  off.lb_coef.reset();
  off.entropy_coef = 0;
  CHECK(
      words("topp:0.4", off) ==
      "language model + 0.5 x load balance (of selected experts); entropy is off (coefficient 0)");
  CHECK(
      words("relu:k=1") ==
      "language model + lambda x L1 (refined by load, l1=refined); lambda is 1e-08 at first, then "
      "times 1.2 after a step of a sparsity below S* = 1 - 1/8 = 0.875, else divided by it");
  CHECK(words("relu:k=2,lambda0=0.5,mult=1.5,l1=plain") ==
        "language model + lambda x L1 (l1=plain); lambda is 0.5 at first, then times 1.5 after a "
        "step "
        "of a sparsity below S* = 1 - 2/8 = 0.75, else divided by it");
  const auto frozen = [](const std::string& router) {
    return describe_losses(resolved(router, router), parse_router(router), 8,
                           /*router_trains=*/false);
  };
  CHECK(frozen("relu:k=1") ==
        "language model + lambda x L1 (refined by load, l1=refined); lambda stays 1e-08, as no "
        "router is trained");
  CHECK(frozen("top2:bias=0.01")
            .ends_with("a bias of the choice that keeps its value, as no "
                       "router is trained"));
  CHECK(words("relu:k=1,lambda0=0") ==
        "language model; L1 (refined by load, l1=refined) is off (lambda 0 stays 0)");
}

TEST_CASE("a coefficient for a loss that the router does not have is refused", "[train]") {
  const auto refusal = [](const std::string& router, auto change) {
    TrainSettings settings;
    change(settings);
    return test::user_error_of([&] { resolved(router, router, settings); });
  };
  CHECK(
      refusal("relu:k=1", [](auto& s) { s.lb_coef = 0.01; }) ==
      "--lb-coef 0.01: relu:k=1 has no load-balance loss, its adaptive L1 spreads the load; leave "
      "it out");
  CHECK(refusal("relu:k=1", [](auto& s) { s.entropy_coef = 1; }) ==
        "--entropy-coef 1: relu:k=1 has no entropy loss, only topp has; leave it out");
  CHECK(refusal("top1", [](auto& s) { s.entropy_coef = 1; }) ==
        "--entropy-coef 1: top1 has no entropy loss, only topp has; leave it out");
  for (const char* router : {"top1", "topp:0.4"}) {
    CHECK(refusal(router, [](auto& s) { s.lambda = 1; }) ==
          fmt::format(
              "--lambda 1: {} has no L1 loss that lambda would weigh, only relu has; leave it "
              "out",
              router));
  }
  CHECK(
      refusal("relu:k=1", [](auto& s) { s.z_coef = 0.001; }) ==
      "--z-coef 0.001: relu:k=1 has no softmax, whose normaliser the z-loss keeps small; leave it "
      "out");
  CHECK(refusal("relu:k=1", [](auto& s) { s.seq_lb_coef = 1; }) ==
        "--seq-lb-coef 1: relu:k=1 has no load-balance loss within sequences, its adaptive L1 "
        "spreads the load; leave it out");
  CHECK(refusal("expert-choice", [](auto& s) { s.seq_lb_coef = 1; }) ==
        "--seq-lb-coef 1: expert-choice has no load-balance loss within sequences, every expert "
        "takes equally many tokens; leave it out");
  CHECK(refusal("expert-choice", [](auto& s) { s.z_coef = 1; }).empty());
  CHECK(refusal("relu:k=1", [](auto& s) { s.lb_coef = 0; }).empty());
  TrainSettings dense;
  dense.model = "folder";
  dense.lb_coef = 0.5;
  CHECK(test::user_error_of([&] { refuse_coefficients(dense); }) ==
        "--lb-coef 0.5: folder is a dense folder, which has no router to weigh a loss of; leave it "
        "out");
  for (const auto member : {&TrainSettings::z_coef, &TrainSettings::seq_lb_coef}) {
    TrainSettings one;
    one.model = "folder";
    one.*member = 0.5;
    CHECK(test::user_error_of([&] {
            refuse_coefficients(one);
          }).find("coef 0.5: folder is a dense folder") != std::string::npos);
  }
}

TEST_CASE("what a router does not have stays empty, so that settings.toml does not say it",
          "[train]") {
  const TrainSettings relu = resolved("relu:k=1", "relu:k=1");
  CHECK_FALSE(relu.lb_coef);
  CHECK_FALSE(relu.entropy_coef);
  CHECK_FALSE(relu.z_coef);
  CHECK_FALSE(relu.seq_lb_coef);
  const TrainSettings top = resolved("top1", "top1");
  CHECK_FALSE(top.entropy_coef);
  CHECK_FALSE(top.lambda);
}
