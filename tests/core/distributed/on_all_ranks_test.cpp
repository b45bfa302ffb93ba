#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/distributed/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/rank_threads.h"

using namespace moe;

namespace {

// Returns the message of each of three ranks when rank r runs body(r).
std::vector<std::string> heard(const std::function<void(int64_t)>& body) {
  std::vector<std::string> sentences(3);
  test::run_as_threads(3, [&](distributed::Comm& comm) {
    try {
      distributed::on_all_ranks(&comm, [&] { body(comm.rank()); });
    } catch (const UserError& error) {
      sentences[comm.rank()] = "user: " + std::string(error.what());
    } catch (const std::exception& error) {
      sentences[comm.rank()] = error.what();
    }
  });
  return sentences;
}

}  // namespace

TEST_CASE("an error of one rank is thrown on all ranks") {
  CHECK(heard([](int64_t) {}) == std::vector<std::string>(3));
  CHECK(heard([](int64_t rank) {
          if (rank == 2) {
            throw UserError("no such folder");
          }
        }) == std::vector<std::string>(3, "user: no such folder"));
  CHECK(heard([](int64_t rank) {
          if (rank == 1) {
            throw std::runtime_error("disk broken");
          }
        }) == std::vector<std::string>(3, distributed::describe(1, distributed::this_member()) +
                                              " failed (disk broken)"));
}

TEST_CASE("a UserError has precedence over the errors that it causes") {
  CHECK(heard([](int64_t rank) {
          if (rank == 0) {
            throw std::runtime_error("broken");
          }
          throw UserError("rank {} has no file", rank);
        }) == std::vector<std::string>(3, "user: rank 1 has no file"));
}

TEST_CASE("a single rank throws its own exception") {
  const auto alone = distributed::solo_comm();
  for (distributed::Comm* comm : {alone.get(), static_cast<distributed::Comm*>(nullptr)}) {
    CHECK_THROWS_AS(distributed::on_all_ranks(comm, [] { throw UserError("wrong"); }), UserError);
    CHECK(distributed::any_rank(comm, true));
    CHECK_FALSE(distributed::any_rank(comm, false));
  }
}

TEST_CASE("a single rank keeps its values") {
  const auto comm = distributed::solo_comm();
  const at::Tensor rows = at::arange(6, at::kFloat).view({3, 2}), output = at::empty_like(rows);
  comm->all_to_all(rows, {3}, output, {3}).wait();
  CHECK(at::equal(rows, output));
  comm->all_reduce(output);
  CHECK(at::equal(rows, output));
  CHECK(comm->split({0})->size() == 1);
}

TEST_CASE("a condition that is true on any rank is returned on all") {
  for (const int64_t where : {-1, 0, 2}) {
    std::vector<int> found(3, -1);
    test::run_as_threads(3, [&](distributed::Comm& comm) {
      found[comm.rank()] = distributed::any_rank(&comm, comm.rank() == where) ? 1 : 0;
    });
    CHECK(found == std::vector<int>(3, where >= 0 ? 1 : 0));
  }
}

TEST_CASE("ranks of one process are on one host") {
  test::run_as_threads(3, [](distributed::Comm& comm) {
    if (distributed::same_host_ranks(comm) != std::vector<int64_t>{0, 1, 2}) {
      throw std::runtime_error("the ranks of this host are others");
    }
  });
  CHECK(distributed::same_host_ranks(*distributed::solo_comm()) == std::vector<int64_t>{0});
}

TEST_CASE("a memory shortage of the ranks of a host is thrown on all of them") {
  // The need of one rank fits, that of two does not: 3/4 of the free memory each.
  uint64_t left = UINT64_MAX;
  for (const auto& limit : memory_limits()) {
    left = std::min(left, limit.is_shared ? limit.left : UINT64_MAX);
  }
  REQUIRE(left < UINT64_MAX);
  const MemoryNeed need{left / 4 * 3, 1, "it", "less"};
  CHECK_FALSE(distributed::check_memory(nullptr, need, false));
  CHECK_THROWS_WITH(
      test::run_as_threads(
          2, [&](distributed::Comm& comm) { distributed::check_memory(&comm, need, false); }),
      test::contains_text("of memory in 2 processes"));
  test::run_as_threads(2, [&](distributed::Comm& comm) {
    if (!distributed::check_memory(&comm, need, true)) {
      throw std::runtime_error("nothing was returned");
    }
  });
}
