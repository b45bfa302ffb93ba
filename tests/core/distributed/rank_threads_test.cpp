// Collectives between threads against what they say: every rank's tensor is a known function of its
// rank.

#include "tests/support/rank_threads.h"

#include <c10/core/AutogradState.h>

#include <mutex>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/collectives.h"

using namespace moe;
using at::Tensor;

namespace {

// Catch2's assertions are for one thread: each rank says whether all was well.
template <typename Body>
void on_ranks(int64_t ranks, const Body& body) {
  std::mutex mutex;
  std::set<int64_t> wrong;
  test::run_as_threads(ranks, [&](distributed::Comm& comm) {
    if (!body(comm)) {
      const std::lock_guard lock(mutex);
      wrong.insert(comm.rank());
    }
  });
  CHECK(wrong.empty());
}

}  // namespace

TEST_CASE("rows arrive in rank order, also where some send none") {
  on_ranks(4, [](distributed::Comm& comm) { return test::rows_arrive_in_rank_order(comm); });
  on_ranks(3, test::one_rank_may_get_all);
}

TEST_CASE("among threads, sums and gathered pieces are the same on all ranks") {
  on_ranks(3, test::sums_and_pieces_are_right);
}

TEST_CASE("among threads, numbers and texts of the host travel") {
  on_ranks(3, test::numbers_and_texts_travel);
}

TEST_CASE("among threads, parts of a Comm talk among themselves") {
  on_ranks(4, test::parts_talk_among_themselves);
}

TEST_CASE("a rank that fails ends the others, and its own words are what is heard") {
  CHECK_THROWS_WITH(test::run_as_threads(3,
                                         [](distributed::Comm& comm) {
                                           if (comm.rank() == 1) {
                                             throw std::runtime_error("rank 1 is unwell");
                                           }
                                           const auto part = comm.part("all", {0, 1, 2});
                                           part->barrier();
                                         }),
                    "rank 1 is unwell");
}

TEST_CASE("each rank runs its own backward") {
  on_ranks(2, [](distributed::Comm&) {
    return !c10::AutogradState::get_tls_state().get_multithreading_enabled();
  });
}

TEST_CASE("one rank alone keeps what it has") {
  const auto comm = distributed::solo_comm();
  const Tensor rows = at::arange(6, at::kFloat).view({3, 2}), output = at::empty_like(rows);
  comm->all_to_all(rows, {3}, output, {3})->wait();
  CHECK(at::equal(rows, output));
  comm->all_reduce(output);
  CHECK(at::equal(rows, output));
  CHECK(comm->part("any", {0})->size() == 1);
}
