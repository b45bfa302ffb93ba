#include "tests/core/route/kernel_plan.h"

#include "core/route/route.h"
#include "tests/support/gpu.h"

using namespace moe::route;
using namespace moe::test;

namespace {

// Returns the run index of each token for runs of `lengths` tokens.
std::vector<int64_t> numbers_of_runs(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> numbers;
  for (size_t run = 0; run < lengths.size(); ++run) {
    numbers.insert(numbers.end(), static_cast<size_t>(lengths[run]), static_cast<int64_t>(run));
  }
  return numbers;
}

}  // namespace

// Few runs are filled one by one, evenly spread runs are computed, other runs are copied: sizes on
// both sides of each limit, runs one token too long or too short, gaps and padding.
TEST_CASE("a GPU is told the homes and sequences that the CPU is", "[route][gpu]") {
  MOE_NEED_GPU();
  std::vector<RoutingGroup> groups;
  for (const int64_t tokens : {0, 1, 2, 31, 33, 128, 200}) {
    for (const int64_t ranks : {1, 2, 5, 31, 64, 65, 128, 256}) {
      groups.push_back(spread_over_ranks(tokens, ranks));
    }
  }
  for (const int64_t runs : {4, 5, 64, 65, 100}) {
    std::vector<int64_t> lengths(static_cast<size_t>(runs), 2);
    const auto add = [&] {
      const std::vector<int64_t> numbers = numbers_of_runs(lengths);
      groups.push_back(spread_over_ranks(static_cast<int64_t>(numbers.size()), 1));
      groups.back().sequence = numbers;
    };
    add();
    lengths.back() = 1;
    add();
    std::swap(lengths.front(), lengths.back());
    add();
    lengths[static_cast<size_t>(runs / 2)] = 4;
    add();
  }
  groups.push_back(spread_over_ranks(200, 128));
  groups.back().home[7] = groups.back().home[199] = -1;
  for (const RoutingGroup& group : groups) {
    const auto tokens = static_cast<int64_t>(group.home.size());
    CAPTURE(tokens, group.ranks, group.sequence.has_value());
    const at::Tensor logits = at::zeros({tokens, group.ranks});
    const RouterSettings router = parse_router("top1");
    const RouteInput truth = make_input(logits, logits, router, group, {});
    const at::Tensor there = logits.to(moe::test::kGpu);
    const RouteInput made = make_input(there, there, router, group, {});
    CHECK(at::equal(made.home.cpu(), truth.home));
    REQUIRE(made.sequence.defined() == truth.sequence.defined());
    CHECK((!made.sequence.defined() || at::equal(made.sequence.cpu(), truth.sequence)));
  }
}

TEST_CASE("a GPU weighs and counts what it routed as LibTorch's operations do on the CPU",
          "[route][gpu]") {
  MOE_NEED_GPU();
  for_each_case({0, 1, 31, 33, 64}, [](const at::Tensor& drawn, const RouterSettings& settings,
                                       const RoutingGroup& given) {
    const bool has_ties = at::equal(drawn, drawn.round());
    if (drawn.size(0) == 31 || drawn.size(0) == 64 || (has_ties && given.ranks != 2)) {
      return;  // covered by the plan's test
    }
    RoutingGroup group = given;
    group.wants_z_loss = group.ranks != 2;
    if (group.ranks == 2) {
      group.sequence = std::vector<int64_t>(group.home.size(), 1);
    }
    const at::Tensor logits = drawn.clone().requires_grad_(true);
    const at::Tensor there = drawn.to(moe::test::kGpu).requires_grad_(true);
    const Routing expected = route_by_rules(logits, settings, group);
    const Routing actual = route(there, settings, group);
    CHECK(at::equal(actual.count.cpu(), expected.count));
    check_counters(actual.counters, expected.counters);
    const at::Tensor upstream = at::randn({expected.plan.token.size(0)});
    check_close(weighed(actual, there, upstream), weighed(expected, logits, upstream));

    const at::Tensor other = drawn * 0.9;  // the plan stays, the weights change
    const at::Tensor again = other.clone().requires_grad_(true);
    const at::Tensor again_there = other.to(moe::test::kGpu).requires_grad_(true);
    check_close(weighed(recompute_gates(again_there, actual, settings), again_there, upstream),
                weighed(weigh_by_rules(again, expected, settings), again, upstream));
  });
}

// Tokens with permuted logits have scores that differ by the rounding of a softmax, which depends
// on the device. The rules therefore use the GPU's scores, which are compared with the CPU's.
TEST_CASE("a GPU routes as the rules do on the CPU, unused rows too", "[route][gpu]") {
  MOE_NEED_GPU();
  for_each_case({0, 1, 31, 33, 64}, [](const at::Tensor& logits, const RouterSettings& settings,
                                       const RoutingGroup& group) {
    const Routing actual = route(logits.to(moe::test::kGpu), settings, group);
    const at::Tensor scores = actual.input.scores.cpu();
    CHECK(at::allclose(scores, router_functions(settings).scores(logits), 1e-6, 1e-7));
    const Routing expected = route_by_rules(logits, settings, group, {}, scores);
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
    CHECK_FALSE(has_fused_gpu_plan(settings, 4));  // the GPU kernels do not support a bias
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
