#include "core/route/kernel_plan.h"

#include "core/route/route.h"
#include "tests/support/gpu.h"

using namespace moe::route;

namespace {

constexpr const char* kRouters[] = {"top1",
                                    "top2",
                                    "top1+ir",
                                    "top1+fr",
                                    "top1+ir+fr",
                                    "top2+ir+fr:cf=0.7",
                                    "top2+ir+fr:order=score",
                                    "top3:order=score",
                                    "top2:cf=inf",
                                    "top2+fr:cf=inf",
                                    "top2+ir:cf=inf",
                                    "top4+ir+fr:cf=2"};

void check_equal(const Plan& actual, const Plan& expected) {
  CHECK(at::equal(actual.token.cpu(), expected.token));
  CHECK(at::equal(actual.expert.cpu(), expected.expert));
  CHECK(at::equal(actual.choice.cpu(), expected.choice));
  CHECK(at::equal(actual.count.cpu(), expected.count));
  CHECK(at::equal(actual.rows.cpu(), expected.rows));
  CHECK(at::equal(actual.overflow_token.cpu(), expected.overflow_token));
  CHECK(at::equal(actual.overflow_expert.cpu(), expected.overflow_expert));
  CHECK(at::equal(actual.overflow_choice.cpu(), expected.overflow_choice));
}

// Random batches of each router, with ties and padding among them.
template <typename Check>
void for_each_case(Check check) {
  at::manual_seed(1);
  for (const auto* text : kRouters) {
    for (const int64_t tokens : {0, 1, 31, 33, 64}) {
      for (const int64_t ranks : {1, 2, 4}) {
        for (const bool ties : {false, true}) {
          CAPTURE(text, tokens, ranks, ties);
          at::Tensor logits = at::randn({tokens, 4}) * 2;
          logits = ties ? logits.round() : logits;
          RoutingGroup group = spread_over_ranks(tokens, ranks);
          if (tokens > 5) {
            group.home[2] = group.home[5] = -1;
          }
          check(logits, parse_router(text), group);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("a GPU routes as the rules do on the CPU, unused rows too", "[route][gpu]") {
  MOE_NEED_GPU();
  for_each_case(
      [](const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group) {
        const Routing expected = route(logits, settings, group);
        const Routing actual = route(logits.to(moe::test::kGpu), settings, group);
        check_equal(actual.plan, expected.plan);
        CHECK(at::allclose(actual.combine.cpu(), expected.combine, 1e-5, 1e-6));
      });
}

TEST_CASE("a GPU routes under a bias as the rules do on the CPU", "[route][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  for (const auto* text : {"top1:bias=0.1", "top2+ir+fr:cf=0.7,bias=0.1", "top3:cf=inf,bias=0"}) {
    CAPTURE(text);
    const RouterSettings settings = parse_router(text);
    CHECK_FALSE(has_kernel_plan(settings, 4));  // the kernels' choice knows no bias
    for (const int64_t tokens : {0, 1, 33, 64}) {
      const at::Tensor logits = at::randn({tokens, 4}) * 2, bias = at::randn({4}) * 0.3;
      const RoutingGroup group = spread_over_ranks(tokens, 2);
      const Routing expected = route(logits, settings, group, bias);
      const Routing actual =
          route(logits.to(moe::test::kGpu), settings, group, bias.to(moe::test::kGpu));
      check_equal(actual.plan, expected.plan);
      CHECK(at::allclose(actual.combine.cpu(), expected.combine, 1e-5, 1e-6));
      CHECK(read_counters({actual.counters})[0].requests_per_expert ==
            read_counters({expected.counters})[0].requests_per_expert);
    }
  }
}
