#include "core/route/kernel_plan.h"

#include <torch/csrc/autograd/autograd.h>

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
                                    "top4+ir+fr:cf=2",
                                    "top2+ir:st=off",
                                    "top2+ir+fr:gate=none",
                                    "top3+ir:lb=selected,cf=0.5"};

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

// Numbers of runs of `lengths` tokens each.
std::vector<int64_t> numbers_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> numbers;
  for (size_t run = 0; run < lengths.size(); ++run) {
    numbers.insert(numbers.end(), static_cast<size_t>(lengths[run]), static_cast<int64_t>(run));
  }
  return numbers;
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

// What training reads of a routing, and its gradient in the logits, on the host.
struct Weighed {
  at::Tensor combine, weights, gradient;
  std::vector<at::Tensor> losses;
};

// `upstream` [rows_max] of the weights; every loss is multiplied by another number.
Weighed weighed(const Routing& routing, const at::Tensor& logits, const at::Tensor& upstream) {
  Weighed result{routing.combine.detach().cpu(), routing.weights.detach().cpu(), {}, {}};
  at::Tensor sum = (routing.weights * upstream.to(logits.device())).sum();
  for (const auto member : kAllLosses) {
    if (const at::Tensor& loss = routing.losses.*member; loss.defined()) {
      result.losses.push_back(loss.detach().cpu());
      sum = sum + 0.3 * static_cast<double>(result.losses.size()) * loss;
    }
  }
  result.gradient = torch::autograd::grad({sum}, {logits})[0].cpu();
  return result;
}

void check_close(const Weighed& actual, const Weighed& expected) {
  CHECK(at::allclose(actual.combine, expected.combine, 1e-5, 1e-6));
  CHECK(at::allclose(actual.weights, expected.weights, 1e-5, 1e-6));
  CHECK(at::allclose(actual.gradient, expected.gradient, 1e-5, 1e-6));
  REQUIRE(actual.losses.size() == expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(at::allclose(actual.losses[i], expected.losses[i], 1e-5, 1e-6));
  }
}

void check_counters(const Counters& actual, const Counters& expected) {
  std::vector<double> found = numbers_of(read_counters({actual})[0]);
  std::vector<double> wanted = numbers_of(read_counters({expected})[0]);
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {  // all but the entropy are whole numbers
    CAPTURE(i);
    CHECK(found[i] == Approx(wanted[i]).epsilon(1e-6).margin(1e-6));
  }
}

}  // namespace

// Few runs are filled one by one, evenly spread ones are made by arithmetic, the rest is copied: on
// both sides of each limit, with runs a token too long or too short, gaps and padding.
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
      const std::vector<int64_t> numbers = numbers_of(lengths);
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
  for_each_case(
      [](const at::Tensor& drawn, const RouterSettings& settings, const RoutingGroup& given) {
        const bool has_ties = at::equal(drawn, drawn.round());
        if (drawn.size(0) == 31 || drawn.size(0) == 64 || (has_ties && given.ranks != 2)) {
          return;  // the plan's own test has them
        }
        RoutingGroup group = given;
        group.wants_z_loss = group.ranks != 2;
        if (group.ranks == 2) {
          group.sequence = std::vector<int64_t>(group.home.size(), 1);
        }
        const at::Tensor logits = drawn.clone().requires_grad_(true);
        const at::Tensor there = drawn.to(moe::test::kGpu).requires_grad_(true);
        const Routing expected = route(logits, settings, group);
        const Routing actual = route(there, settings, group);
        CHECK(at::equal(actual.count.cpu(), expected.count));
        check_counters(actual.counters, expected.counters);
        const at::Tensor upstream = at::randn({expected.plan.token.size(0)});
        check_close(weighed(actual, there, upstream), weighed(expected, logits, upstream));

        const at::Tensor other = drawn * 0.9;  // what was decided stays, the weights move
        const at::Tensor again = other.clone().requires_grad_(true);
        const at::Tensor again_there = other.to(moe::test::kGpu).requires_grad_(true);
        check_close(weighed(route_again(again_there, actual, settings), again_there, upstream),
                    weighed(route_again(again, expected, settings), again, upstream));
      });
}

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
