#include "core/train/config/settings.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
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

std::string described(const std::string& router, TrainSettings settings = {}) {
  return describe_losses(resolved(router, router, std::move(settings)), parse_router(router), 8);
}

}  // namespace

TEST_CASE("a coefficient is that of the flag, else of the folder, else the default of the router",
          "[train]") {
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

TEST_CASE("z-loss and sequence balance are off unless a flag or the folder gives a coefficient",
          "[train]") {
  CHECK_FALSE(resolved("top2", "top1").z_coef);
  CHECK_FALSE(resolved("top2", "top1").seq_lb_coef);
  const auto resolved_pair = [](const std::string& router, std::optional<double> flag) {
    model::MoeConfig moe = folder("top2");
    moe.z_coef = 0.25;
    moe.seq_lb_coef = 0.125;
    TrainSettings settings;
    settings.z_coef = settings.seq_lb_coef = flag;
    resolve_coefficients(settings, moe, {parse_router(router), 1, {}, false});
    return std::pair(settings.z_coef, settings.seq_lb_coef);
  };
  using Both = std::pair<std::optional<double>, std::optional<double>>;
  CHECK((resolved_pair("top1", {}) == Both(0.25, 0.125)));
  CHECK((resolved_pair("top1", 0.5) == Both(0.5, 0.5)));
  CHECK((resolved_pair("top1", 0) == Both(0, 0)));                        // overrides the folder
  for (const char* router : {"topp:0.4", "expert-choice", "relu:k=1"}) {  // other families
    CHECK((resolved_pair(router, {}) == Both()));
  }
  TrainSettings flags;
  flags.z_coef = 0.001;
  flags.seq_lb_coef = 0.0001;
  CHECK_THAT(described("top1", flags), test::contains_text("0.5 x load balance") &&
                                           test::contains_text("0.001 x z-loss") &&
                                           test::contains_text("0.0001 x load balance"));
}

TEST_CASE("a bias replaces the load-balance loss unless a coefficient is given", "[train]") {
  CHECK(resolved("top2", "top2:bias=0.001").lb_coef == 0);
  CHECK(resolved("top2:bias=0.01", "top2:bias=0.001").lb_coef == 0.5);  // that of the folder
  CHECK(resolved("top2:bias=0.01", "top2").lb_coef == 0.01);
  TrainSettings flags;
  flags.lb_coef = 0.125;
  CHECK(resolved("top2", "top2:bias=0.001", flags).lb_coef == 0.125);
  CHECK(route::default_lb_coef(parse_router("top2:bias=0")) == 0);
}

TEST_CASE("lambda is that of the flag, else a given lambda0, else of the folder, else lambda0",
          "[train]") {
  CHECK(resolved("relu:k=1", "relu:k=1").lambda == 1e-8);
  CHECK(resolved("relu:k=1", "relu:k=1", {}, 0.75).lambda == 0.75);
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", {}, 0.75).lambda == 0.5);
  TrainSettings flags;
  flags.lambda = 0.25;
  CHECK(resolved("relu:k=1", "relu:k=1,lambda0=0.5", flags, 0.75).lambda == 0.25);
}

TEST_CASE("the description of the losses has each loss with its coefficient or as off", "[train]") {
  TrainSettings no_balance, no_entropy;
  no_balance.lb_coef = 0;
  no_entropy.entropy_coef = 0;
  struct Case {
    const char* router;
    std::vector<std::string> facts;
    TrainSettings settings = {};
  };
  for (const auto& [router, facts, settings] : std::vector<Case>{
           {"top1+ir", {"0.5 x load balance (of first choices)"}},
           {"top2:lb=selected", {"0.5 x load balance (of selected experts)"}},
           {"topp:0.4", {"0.5 x load balance (of selected experts)", "0.25 x entropy"}},
           {"top1", {"load balance (of first choices) is off"}, no_balance},
           {"topp:0.4", {"0.5 x load balance", "entropy is off"}, no_entropy},
           {"relu:k=1", {"lambda x L1", "l1=refined", "1e-08", "times 1.2", "1 - 1/8 = 0.875"}},
           {"relu:k=2,lambda0=0.5,mult=1.5,l1=plain",
            {"lambda x L1", "l1=plain", "lambda is 0.5", "times 1.5", "1 - 2/8 = 0.75"}},
           {"relu:k=1,lambda0=0", {"is off"}}}) {
    const std::string text = described(router, settings);
    CHECK_THAT(text, test::contains_text("language model"));
    for (const auto& fact : facts) {
      CHECK_THAT(text, test::contains_text(fact));
    }
  }
  for (const auto& [router, fact] :
       {std::pair("relu:k=1", "lambda stays 1e-08"), std::pair("top2:bias=0.01", "bias")}) {
    CHECK_THAT(describe_losses(resolved(router, router), parse_router(router), 8,
                               /*router_trains=*/false),
               test::contains_text(fact) && test::contains_text("no router is trained"));
  }
}

TEST_CASE("a coefficient for a loss that the router does not have is refused by flag and router",
          "[train]") {
  const auto refusal = [](const std::string& router, auto change) {
    TrainSettings settings;
    change(settings);
    return test::user_error_of([&] { resolved(router, router, settings); });
  };
  struct Case {
    const char* router;
    std::string facts;
    void (*change)(TrainSettings& settings);
  };
  for (const auto& [router, flag, change] : std::vector<Case>{
           {"relu:k=1", "--lb-coef 0.01: ", [](auto& s) { s.lb_coef = 0.01; }},
           {"relu:k=1", "--entropy-coef 1: ", [](auto& s) { s.entropy_coef = 1; }},
           {"top1", "--entropy-coef 1: ", [](auto& s) { s.entropy_coef = 1; }},
           {"top1", "--lambda 1: ", [](auto& s) { s.lambda = 1; }},
           {"topp:0.4", "--lambda 1: ", [](auto& s) { s.lambda = 1; }},
           {"relu:k=1", "--z-coef 0.001: ", [](auto& s) { s.z_coef = 0.001; }},
           {"relu:k=1", "--seq-lb-coef 1: ", [](auto& s) { s.seq_lb_coef = 1; }},
           {"expert-choice", "--seq-lb-coef 1: ", [](auto& s) { s.seq_lb_coef = 1; }}}) {
    CHECK(refusal(router, change).find(flag + router) == 0);
  }
  CHECK(refusal("expert-choice", [](auto& s) { s.z_coef = 1; }).empty());
  CHECK(refusal("relu:k=1", [](auto& s) { s.lb_coef = 0; }).empty());
  for (const auto& [flag, member] : {std::pair("--lb-coef", &TrainSettings::lb_coef),
                                     std::pair("--z-coef", &TrainSettings::z_coef),
                                     std::pair("--seq-lb-coef", &TrainSettings::seq_lb_coef)}) {
    TrainSettings dense;
    dense.model = "folder";
    dense.*member = 0.5;
    CHECK(test::user_error_of([&] {
            refuse_coefficients(dense);
          }).find(std::string(flag) + " 0.5: folder is a dense folder") == 0);
  }
}
