#include "kernels/ops/plan_weights.h"

#include <bit>

#include "tests/kernels/reference/plan_weights.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using moe::test::in_two_orders;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

// A plan that no rule need have made, and logits. All on one device.
struct Given {
  Tensor token, expert, choice, count, home, logits, scores, by_logit;
  int64_t ranks, k;

  PlanRows rows() const {
    return {token.const_data_ptr<int64_t>(),
            expert.const_data_ptr<int64_t>(),
            choice.const_data_ptr<int64_t>(),
            count.const_data_ptr<int64_t>(),
            home.const_data_ptr<int64_t>(),
            token.numel(),
            logits.size(0),
            logits.size(1),
            ranks,
            k};
  }
  Given there() const {
    return {to_gpu(token),  to_gpu(expert), to_gpu(choice),   to_gpu(count), to_gpu(home),
            to_gpu(logits), to_gpu(scores), to_gpu(by_logit), ranks,         k};
  }
};

// Each token has some of its first k + 1 choices, and at times a rectification at one of the same
// experts; every fifth token is padding, every seventh has no row; unused rows stand last.
Given random_plan(int64_t tokens, int64_t experts, int64_t ranks, int64_t k, double scale) {
  const Tensor logits = at::randn({tokens, experts}) * scale;
  const Tensor by_logit = std::get<1>(at::sort(logits, /*stable=*/true, 1, /*descending=*/true));
  Tensor home = at::arange(tokens).remainder(ranks);
  home.masked_fill_(at::arange(tokens).remainder(5) == 3, ranks);
  std::vector<std::array<int64_t, 4>> rows;  // token, expert, choice, count
  for (int64_t t = 0; t < tokens; ++t) {
    if (home[t].item<int64_t>() == ranks || t % 7 == 2) {
      continue;
    }
    int64_t missing = k;
    for (int64_t c = 0; c < std::min(k + 1, experts); ++c) {
      if (missing > 0 && (t + c) % 3 != 0) {
        rows.push_back({t, by_logit[t][c].item<int64_t>(), c, 1});
        --missing;
      }
    }
    if (missing > 0 && t % 2 == 0) {
      rows.push_back({t, by_logit[t][0].item<int64_t>(), k + 1, missing});
    }
  }
  rows.insert(rows.end(), 3, {0, experts, 0, 0});
  const auto column = [&](size_t i) {
    std::vector<int64_t> numbers;
    for (const auto& row : rows) {
      numbers.push_back(row[i]);
    }
    return at::tensor(numbers, at::kLong);
  };
  return {column(0), column(1), column(2), column(3), home, logits, at::softmax(logits, 1),
          by_logit,  ranks,     k};
}

// count [T, E] and counted, by `run`, which takes the arguments.
template <typename Run>
std::vector<Tensor> counts(const Given& given, bool rectifies, bool dropless, Run run) {
  const PlanRows rows = given.rows();
  const Tensor count = poisoned({rows.tokens, rows.experts}, at::kFloat);
  const Tensor counted = poisoned({(rows.ranks + 1) * kRowKinds + 2}, at::kLong);
  const Tensor sums = poisoned({plan_weights_sums(rows.tokens)}, at::kDouble);
  run(PlanCountsArgs{
      rows, given.logits.const_data_ptr<float>(), given.scores.const_data_ptr<float>(), rectifies,
      dropless, count.data_ptr<float>(), counted.data_ptr<int64_t>(), sums.data_ptr<double>()});
  return {count, counted};
}

// combine, weights, chosen, load balance, z.
template <typename Run>
std::vector<Tensor> weights(const Given& given, const PlanWeightsKind& kind, const Tensor& count,
                            Run run) {
  const PlanRows rows = given.rows();
  const std::vector<Tensor> to = {poisoned({rows.tokens, rows.experts}, at::kFloat),
                                  poisoned({rows.rows}, at::kFloat),
                                  poisoned({rows.ranks * (rows.experts + 1)}, at::kInt),
                                  poisoned({1}, at::kFloat), poisoned({1}, at::kFloat)};
  const Tensor sums = poisoned({2 * plan_weights_sums(rows.tokens)}, at::kDouble);
  run(PlanWeightsArgs{rows, kind, given.logits.const_data_ptr<float>(),
                      count.const_data_ptr<float>(), given.by_logit.const_data_ptr<int64_t>(),
                      to[0].data_ptr<float>(), to[1].data_ptr<float>(), to[2].data_ptr<int32_t>(),
                      sums.data_ptr<double>(), to[3].data_ptr<float>(), to[4].data_ptr<float>()});
  return to;
}

// Of rows, combine, load balance and z; undefined is none.
struct Upstream {
  Tensor weights, combine, load_balance, z;
};

template <typename Run>
Tensor gradient(const Given& given, const PlanWeightsKind& kind, const Tensor& count,
                const std::vector<Tensor>& forward, const Upstream& upstream, Run run) {
  const PlanRows rows = given.rows();
  const auto pointer = [](const Tensor& f32) {
    return f32.defined() ? f32.const_data_ptr<float>() : nullptr;
  };
  const Tensor pulled = poisoned({rows.tokens, rows.experts}, at::kFloat);
  const Tensor to = poisoned({rows.tokens, rows.experts}, at::kFloat);
  run(PlanWeightsBackwardArgs{rows, kind, given.logits.const_data_ptr<float>(),
                              count.const_data_ptr<float>(), forward[0].const_data_ptr<float>(),
                              forward[2].const_data_ptr<int32_t>(), pointer(upstream.weights),
                              pointer(upstream.combine), pointer(upstream.load_balance),
                              pointer(upstream.z), pulled.data_ptr<float>(), to.data_ptr<float>()});
  return to;
}

// Of f32 sums of at most 256 terms, and exponentials of logits up to 20 apart.
bool is_close(const Tensor& actual, const Tensor& expected) {
  return at::allclose(actual, expected, 2e-5, 2e-6);
}

double entropy_of(const Tensor& counted) {
  return std::bit_cast<double>(counted[counted.numel() - 1].item<int64_t>());
}

void check_counts(const Given& given, const Given& there) {
  for (const bool rectifies : {false, true}) {
    for (const bool dropless : {false, true}) {
      CAPTURE(rectifies, dropless);
      const auto expected = counts(given, rectifies, dropless, moe::test::plan_counts_reference);
      const auto actual = in_two_orders([&] {
        return counts(there, rectifies, dropless, [&](const PlanCountsArgs& args) {
          plan_counts_cuda(args, stream_of(there.logits));
        });
      });
      CHECK(at::equal(actual[0], expected[0]));
      const int64_t numbers = expected[1].numel() - 1;
      CHECK(at::equal(actual[1].narrow(0, 0, numbers), expected[1].narrow(0, 0, numbers)));
      CHECK(std::abs(entropy_of(actual[1]) - entropy_of(expected[1])) <=
            1e-6 * static_cast<double>(given.logits.numel()));
    }
  }
}

void check_weights(const Given& given, const Given& there, const PlanWeightsKind& kind) {
  const Tensor count = counts(given, true, false, moe::test::plan_counts_reference)[0];
  const Tensor count_there = to_gpu(count);
  const auto expected = weights(given, kind, count, moe::test::plan_weights_reference);
  const auto run = [&] {
    return weights(there, kind, count_there, [&](const PlanWeightsArgs& args) {
      plan_weights_cuda(args, stream_of(there.logits));
    });
  };
  const auto actual = in_two_orders(run);
  for (const size_t i : {0, 1, 3, 4}) {
    CAPTURE(i);
    CHECK(is_close(actual[i], expected[i]));
  }
  CHECK(at::equal(actual[2], expected[2]));

  const std::vector<Tensor> forward = run();
  const Tensor of_rows = at::randn({given.token.numel()}), of_all = at::randn_like(given.logits);
  const Tensor of_balance = at::full({}, 0.7F), of_z = at::full({}, -0.3F);
  for (const Upstream& up : {Upstream{of_rows, {}, {}, {}}, Upstream{of_rows, {}, of_balance, {}},
                             Upstream{{}, of_all, {}, of_z}, Upstream{{}, {}, of_balance, of_z},
                             Upstream{of_rows, of_all, of_balance, of_z}}) {
    const auto if_any = [](const Tensor& t) { return t.defined() ? to_gpu(t) : t; };
    const Upstream up_there{if_any(up.weights), if_any(up.combine), if_any(up.load_balance),
                            if_any(up.z)};
    const Tensor wanted =
        gradient(given, kind, count, expected, up, moe::test::plan_weights_backward_reference);
    const auto found = in_two_orders([&] {
      return std::vector<Tensor>{gradient(
          there, kind, count_there, forward, up_there, [&](const PlanWeightsBackwardArgs& args) {
            plan_weights_backward_cuda(args, stream_of(there.logits));
          })};
    });
    CAPTURE(up.weights.defined(), up.combine.defined(), up.load_balance.defined(), up.z.defined());
    CHECK(is_close(found[0], wanted));
  }
}

void check(int64_t tokens, int64_t experts, int64_t ranks, int64_t k, double scale = 2) {
  CAPTURE(tokens, experts, ranks, k, scale);
  const Given given = random_plan(tokens, experts, ranks, k, scale), there = given.there();
  check_counts(given, there);
  for (const auto& [normalise, straight_through, choices] :
       {std::tuple{true, true, int64_t{1}}, {true, false, k}, {false, false, k}}) {
    CAPTURE(normalise, straight_through, choices);
    check_weights(given, there,
                  {normalise, straight_through, choices, std::max<int64_t>(1, ranks - 1)});
  }
}

}  // namespace

TEST_CASE("the kernels count and weigh a plan as plain loops in double do, and its gradient",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 33}) {
    check(tokens, 1, 1, 1);
    check(tokens, 3, 1, 2);
    check(tokens, 4, 2, 1);
    check(tokens, 4, 4, 4);  // k = E
    check(tokens, 48, 4, 2);
  }
  check(40, 8, 2, 2, 20);  // saturated scores
  check(40, 8, 2, 2, 0);   // ties everywhere, no logit is another
}

TEST_CASE("the kernels weigh plans of many experts and of many ranks", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  check(19, 35, 5, 3);
  check(19, 65, 1, 3);
  check(19, 130, 2, 3);
  check(19, 256, 16, 3);   // more counts than shared memory holds
  check(19, 256, 256, 1);  // kinds of rows too
}

TEST_CASE("the kernels weigh plans of more tokens than they have warps",
          "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const Given given = random_plan(8300, 4, 2, 2, 2), there = given.there();
  check_counts(given, there);
  check_weights(given, there, {true, true, 1, 2});
}

TEST_CASE("the kernels refuse more experts than their lanes can hold", "[kernels][gpu]") {
  MOE_NEED_GPU();
  const Given there = random_plan(1, 257, 1, 1, 1).there();
  REQUIRE_THROWS_AS(
      counts(there, false, false,
             [&](const PlanCountsArgs& args) { plan_counts_cuda(args, stream_of(there.logits)); }),
      std::runtime_error);
}
