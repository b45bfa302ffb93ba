// Joining a run, and naming the rank that keeps it from making progress. The ranks are in one
// process and share a store.

#include <fmt/format.h>

#include <thread>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "tests/support/catch.h"
#include "tests/support/local_store.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::distributed {
namespace {

using test::contains_text;

Member elsewhere(int64_t rank) {
  return {fmt::format("h{}", rank), fmt::format("10.0.0.{}", rank), "another machine", 100 + rank};
}

std::vector<Member> members_elsewhere(int64_t size) {
  std::vector<Member> members;
  for (int64_t rank = 0; rank < size; ++rank) {
    members.push_back(elsewhere(rank));
  }
  return members;
}

// Returns the message with which `rank` fails to join, "" if it joins.
std::string join_failure(Store store, int64_t rank, int64_t size, double timeout_s) {
  try {
    claim_rank(store, rank, elsewhere(rank));
    join(store, size, Seconds{timeout_s});
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A rank of a run with a timeout of 1 s.
class Rank {
 public:
  Rank(const Store& store, int64_t rank, std::vector<Member> members)
      : group_(store, rank, std::move(members), Seconds{1}) {}

  ProcessGroup& group() { return group_; }
  void begin(const char* operation, const TraceContext& trace) { group_.begin(operation, trace); }
  // Returns the message of its failure within 10 s, "" if there is none.
  std::string failure(double limit_s = 10) {
    for (WaitClock clock; clock.elapsed() < Seconds{limit_s};
         std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      try {
        group_.check();
      } catch (const RankFailed& error) {
        return error.what();
      }
    }
    return "";
  }

 private:
  ProcessGroup group_;
};

}  // namespace

TEST_CASE("joined ranks get the list of all members", "[distributed]") {
  Store store = test::make_local_store();
  std::thread other([&] { join_failure(store, 1, 2, 10); });
  claim_rank(store, 0, elsewhere(0));
  const auto members = join(store, 2, Seconds{10});
  other.join();
  CHECK(describe(1, members[1]) == "rank 1 (host h1, pid 101)");
}

TEST_CASE("ranks that do not join are named", "[distributed]") {
  CHECK(join_failure(test::make_local_store(), 1, 4, 0.2) ==
        "ranks 0, 2, 3 of 4 did not join within 0.2 s of the start");
  CHECK_THAT(join_failure(test::make_local_store(), 0, 20, 0.2),
             contains_text("ranks 1, 2, 3, 4, 5, 6,") && contains_text("... of 20 did not join"));
}

TEST_CASE("a second process of a rank is refused", "[distributed]") {
  Store store = test::make_local_store();
  claim_rank(store, 0, elsewhere(0));
  claim_rank(store, 0, elsewhere(0));  // the same process
  CHECK_THAT(test::user_error_of([&] { claim_rank(store, 0, elsewhere(5)); }),
             contains_text("rank 0") && contains_text("MASTER_PORT"));
  CHECK(store.read("member/0") == "h0\n10.0.0.0\nanother machine\n100");
}

TEST_CASE("a member that cannot be parsed has no control characters", "[distributed]") {
  for (const std::string& text : {std::string(), std::string("{"), std::string("\x1b]0;owned\x07"),
                                  std::string("\xff\xff"), std::string(5000, '[')}) {
    Store store = test::make_local_store();
    store.set("member/0", text);
    const std::string member = describe(0, join(store, 1, Seconds{1}).front());
    CHECK((member.size() < 200 && member.find('\x1b') == std::string::npos));
    CHECK(member.find('\xff') == std::string::npos);
  }
}

TEST_CASE("a rank that fails before all have joined is named", "[distributed]") {
  Store store = test::make_local_store();
  set_verdict(store, {0, 1, "rank 0 failed (no such folder)"});
  CHECK_THAT(join_failure(store, 1, 2, 5), contains_text("rank 0 failed (no such folder): before"));
}

TEST_CASE("the first verdict is valid for all ranks", "[distributed]") {
  Store store = test::make_local_store();
  CHECK(set_verdict(store, {0, 2, "first"}).text == "first");
  CHECK(set_verdict(store, {1, 1, "second"}).text == "first");
  const auto verdict = read_verdict(store);
  REQUIRE(verdict);
  CHECK((verdict->rank == 0 && verdict->exit_code == 2));
}

TEST_CASE("records that cannot be parsed end the run, and control characters are removed",
          "[distributed]") {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("1 x"), std::string("1e99 1 text"),
        std::string("99999999999999999999 1"), std::string("\xff\xff"), std::string(5000, '[')}) {
    Store store = test::make_local_store();
    store.set("verdict", text);
    const auto verdict = read_verdict(store);
    REQUIRE(verdict);
    CHECK((verdict->rank == -1 && verdict->exit_code == 1));
    CHECK(join_failure(store, 1, 2, 1) != "");
  }
  Store store = test::make_local_store();
  CHECK(set_verdict(store, {1, 1, "\x1b]0;owned\x07"}).text.find('\x1b') == std::string::npos);
}

TEST_CASE("a rank that is not in the collective is named with its own position", "[distributed]") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(3)), second(store, 1, members_elsewhere(3)),
      late(store, 2, members_elsewhere(3));
  first.begin("all_to_all", {7, 3});
  second.begin("all_to_all", {7, 3});
  late.group().end(late.group().begin("all_reduce", {7, 2}));
  for (Rank* rank : {&first, &second}) {
    CHECK_THAT(
        rank->failure(),
        contains_text(
            "rank 2 (host h2, pid 102) is not in the collective (its last operation: step 7, "
            "layer 2, all_reduce): step 7, layer 3, all_to_all"));
  }
  CHECK_THAT(late.failure(), contains_text("rank 2 (host h2, pid 102) is not in the collective"));
}

TEST_CASE("a rank that does not answer after a connection broke has exited", "[distributed]") {
  Rank first(test::make_local_store(), 0, members_elsewhere(2));
  first.group().report_broken("a connection broke");
  CHECK(first.failure() == "rank 1 (host h1, pid 101) has exited: after the start");
}

TEST_CASE("ranks that all wait in one collective are not blamed", "[distributed]") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  second.begin("all_reduce", {4, 2});
  CHECK_THAT(first.failure(), contains_text("all ranks wait in a collective"));
}

TEST_CASE("a rank in a long operation is waited for, with the usual limit after it",
          "[distributed]") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  auto operation = second.group().long_operation();
  CHECK(first.failure(2.5) == "");
  operation.reset();
  CHECK(first.failure(0.2) == "");
  CHECK_THAT(first.failure(), contains_text("rank 1 (host h1, pid 101) is not in the collective"));
}

TEST_CASE("healthy ranks write nothing to the store", "[distributed]") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  for (int i = 0; i < 50; ++i) {
    first.group().end(first.group().begin("all_reduce", {i, 0}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(first.failure(0.1) == "");
  CHECK_FALSE(store.read("verdict"));
  CHECK_FALSE(store.read("question/1"));
}

}  // namespace moe::distributed
