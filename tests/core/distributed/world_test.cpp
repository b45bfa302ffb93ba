#include "core/distributed/comm.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/rank_threads.h"

using namespace moe;
using moe::test::contains_text;

TEST_CASE("by default expert parallelism spans as many processes as W allows") {
  CHECK(distributed::make_layout(1, 0, {}, 8, 8).group() == 1);
  CHECK(distributed::make_layout(4, 0, {}, 8, 8).group() == 4);
  CHECK(distributed::make_layout(4, 0, {}, 2, 8).group() == 2);
  CHECK(distributed::make_layout(4, 0, 4, 8, 8).group() == 1);
  const distributed::Layout dense = distributed::make_layout(3, 2, {}, 1, 0);
  CHECK((dense.replicas == 3 && dense.replica() == 2 && dense.ep_rank() == 0));
}

TEST_CASE("a layout gives the experts, logical ranks and rows of a process") {
  const distributed::Layout layout = distributed::make_layout(4, 3, 2, 4, 8);  // replica 1, place 1
  CHECK((layout.replica() == 1 && layout.ep_rank() == 1));
  CHECK((layout.first_expert() == 4 && layout.local_experts() == 4));
  CHECK(layout.local_logical_ranks() == 2);
  CHECK(
      (layout.first_row(5, 0) == 0 && layout.first_row(5, 1) == 2 && layout.first_row(5, 2) == 5));
  CHECK(distributed::describe(layout) ==
        "4 processes = 2 replicas x 2 in an expert-parallel group; 4 logical ranks, 2 a process; "
        "8 experts, 4 a process");
}

TEST_CASE("an invalid layout is refused") {
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 3, 8, 8),
                    contains_text("--replicas 3 does not divide"));
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 1, 2, 8),
                    contains_text("do not divide --ep-ranks 2"));
  CHECK_THROWS_WITH(distributed::make_layout(2, 0, {}, 3, 8),
                    contains_text("--ep-ranks 3 does not divide"));
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 2, 1, 0), contains_text("dense model"));
}

TEST_CASE("groups and replicas are the rows and columns of the processes") {
  std::vector<std::vector<int64_t>> seen(4);
  test::run_as_threads(4, [&](distributed::Comm& comm) {
    distributed::World world(comm, distributed::make_layout(4, comm.rank(), 2, 8, 8));
    std::vector<int64_t> sums{world.group->size(), world.replicas->size()};
    for (distributed::Comm* part : {world.group.get(), world.replicas.get()}) {
      sums.push_back(static_cast<int64_t>(
          distributed::sum_numbers(*part, {static_cast<double>(comm.rank())}).front()));
    }
    seen[comm.rank()] = sums;
  });
  CHECK(seen ==
        std::vector<std::vector<int64_t>>{{2, 2, 1, 2}, {2, 2, 1, 4}, {2, 2, 5, 2}, {2, 2, 5, 4}});
}
