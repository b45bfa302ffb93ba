#include "core/dist/together.h"

#include "core/base/error.h"
#include "core/dist/solo.h"
#include "core/dist/threads.h"
#include "tests/support/catch.h"

using namespace moe;

namespace {

// What each of three ranks hears when rank r runs body(r).
std::vector<std::string> heard(const std::function<void(int64_t)>& body) {
  std::vector<std::string> sentences(3);
  dist::run_as_threads(3, [&](dist::Comm& comm) {
    try {
      dist::together(comm, [&] { body(comm.rank()); });
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

TEST_CASE("ranks that mean different runs are told where they differ") {
  const auto texts = [](const std::vector<std::string>& all) {
    dist::run_as_threads(static_cast<int64_t>(all.size()), [&](dist::Comm& comm) {
      dist::agree(comm, "the settings", all[comm.rank()]);
    });
  };
  texts({"lr = 1\nsteps = 5\n", "lr = 1\nsteps = 5\n"});
  CHECK_THROWS_WITH(texts({"lr = 1\nsteps = 5\n", "lr = 1\nsteps = 6\n"}),
                    "rank 1 and rank 0 differ in the settings: 'steps = 6' there, 'steps = 5' "
                    "here; start all ranks with the same command, files and binary");
  CHECK_THROWS_WITH(texts({"a", "a\nmore"}), Catch::Matchers::StartsWith("rank 1 and rank 0"));
  const auto alone = dist::solo_comm();
  dist::agree(*alone, "anything", "text");
  CHECK_THROWS_WITH(dist::together(*alone, [] { throw UserError("mine"); }), "mine");
}
