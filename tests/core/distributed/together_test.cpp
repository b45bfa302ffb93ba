#include "core/distributed/together.h"

#include "core/base/error.h"
#include "core/distributed/solo.h"
#include "core/distributed/threads.h"
#include "tests/support/catch.h"

using namespace moe;

namespace {

// What each of three ranks hears when rank r runs body(r).
std::vector<std::string> heard(const std::function<void(int64_t)>& body) {
  std::vector<std::string> sentences(3);
  distributed::run_as_threads(3, [&](distributed::Comm& comm) {
    try {
      distributed::together(comm, [&] { body(comm.rank()); });
    } catch (const UserError& error) {
      sentences[comm.rank()] = "user: " + std::string(error.what());
    } catch (const std::exception& error) {
      sentences[comm.rank()] = error.what();
    }
  });
  return sentences;
}

}  // namespace

TEST_CASE("what one rank cannot do no rank goes on from") {
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
        }) == std::vector<std::string>(3, "rank 1: disk broken"));
}

TEST_CASE("the user's mistake is told before what follows from it") {
  CHECK(heard([](int64_t rank) {
          if (rank == 0) {
            throw std::runtime_error("broken");
          }
          throw UserError("rank {} has no file", rank);
        }) == std::vector<std::string>(3, "user: rank 1 has no file"));
}

TEST_CASE("one rank alone throws what it throws") {
  const auto alone = distributed::solo_comm();
  CHECK_THROWS_AS(distributed::together(*alone, [] { throw UserError("mine"); }), UserError);
}
