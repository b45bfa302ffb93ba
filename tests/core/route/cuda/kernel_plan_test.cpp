#include "tests/core/route/kernel_plan.h"

#include "core/route/route.h"
#include "tests/support/gpu.h"

using namespace moe::route;
using namespace moe::test;

// Few runs are filled one by one, even runs are computed, others are copied. Sizes on both sides of
// each limit, runs that are one token too long or too short, gaps and padding.
TEST_CASE("source ranks and sequences on a GPU equal those on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  std::vector<RoutingGroup> groups;
  for (const int64_t tokens : {0, 1, 33, 200}) {
    for (const int64_t ranks : {1, 5, 64, 65, 256}) {
      groups.push_back(partition_tokens(tokens, ranks));
    }
  }
  for (const int64_t runs : {4, 5, 64, 65}) {
    std::vector<int64_t> lengths(static_cast<size_t>(runs), 2);
    const auto add = [&] {
      std::vector<int64_t> sequence;
      for (int64_t run = 0; run < runs; ++run) {
        sequence.insert(sequence.end(), static_cast<size_t>(lengths[run]), run);
      }
      groups.push_back(partition_tokens(static_cast<int64_t>(sequence.size()), 1));
      groups.back().sequence = sequence;
    };
    add();
    lengths.back() = 1;
    add();
    std::swap(lengths.front(), lengths.back());
    add();
    lengths[static_cast<size_t>(runs / 2)] = 4;
    add();
  }
  groups.push_back(partition_tokens(200, 128));
  groups.back().source_rank[7] = groups.back().source_rank[199] = -1;
  for (const RoutingGroup& group : groups) {
    const auto tokens = static_cast<int64_t>(group.source_rank.size());
    CAPTURE(tokens, group.ranks, group.sequence.has_value());
    const at::Tensor logits = at::zeros({tokens, group.ranks});
    const RouterSettings router = parse_router("top1");
    const RouteInput truth = make_input(logits, logits, router, group, {});
    const at::Tensor there = logits.to(moe::test::kGpu);
    const RouteInput made = make_input(there, there, router, group, {});
    CHECK(at::equal(made.source_rank.cpu(), truth.source_rank));
    REQUIRE(made.sequence.defined() == truth.sequence.defined());
    CHECK((!made.sequence.defined() || at::equal(made.sequence.cpu(), truth.sequence)));
  }
}

TEST_CASE("plans, gates and counters on a GPU equal the rules on the CPU", "[gpu]") {
  MOE_NEED_GPU();
  check_planned_routers(
      kGpu, {{0, 2, false}, {1, 4, false}, {31, 4, true}, {64, 1, true}, {33, 2, false}});
}
