#include "core/distributed/hosts.h"

#include "core/distributed/threads.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

namespace moe::distributed {
namespace {

using test::contains_text;

TEST_CASE("ranks of one process share its host", "[distributed]") {
  run_as_threads(3, [](Comm& comm) {
    if (ranks_of_this_host(comm) != std::vector<int64_t>{0, 1, 2}) {
      throw std::runtime_error("the ranks of this host are others");
    }
  });
  CHECK(ranks_of_this_host(*solo_comm()) == std::vector<int64_t>{0});
}

TEST_CASE("what the ranks of a host need together is refused on all of them", "[distributed]") {
  // One of them could have it: more than half of what is left, less than all of it.
  uint64_t left = UINT64_MAX;
  for (const auto& limit : memory_limits()) {
    left = std::min(left, limit.is_shared ? limit.left : UINT64_MAX);
  }
  REQUIRE(left < UINT64_MAX);
  const MemoryNeed need{left / 4 * 3, 1, "it", "less"};
  CHECK_FALSE(check_memory(nullptr, need, false));
  CHECK_THROWS_WITH(run_as_threads(2, [&](Comm& comm) { check_memory(&comm, need, false); }),
                    contains_text("of memory in 2 processes"));
  run_as_threads(2, [&](Comm& comm) {
    if (!check_memory(&comm, need, true)) {
      throw std::runtime_error("nothing was said");
    }
  });
}

}  // namespace
}  // namespace moe::distributed
