// Joining a run, and naming the rank that keeps it from making progress. Ranks are threads with one
// store; most claim to be on another machine, where their process cannot be seen.

#include "core/distributed/monitor.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "core/base/error.h"
#include "tests/support/catch.h"
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
std::string join_failure(Store store, int64_t rank, int64_t size, double timeout_s,
                         const std::string& version = "moe 1") {
  try {
    join(store, rank, size, elsewhere(rank), version, Seconds{timeout_s});
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A rank of a run with a timeout of 2 s.
class Rank {
 public:
  Rank(const Store& store, int64_t rank, std::vector<Member> members)
      : monitor_(store, rank, std::move(members), Seconds{2}, -1, nullptr) {}

  Monitor& monitor() { return monitor_; }
  void begin(const char* operation, const TraceContext& trace) { monitor_.begin(operation, trace); }
  // Returns the message of its failure within 10 s, "" if there is none.
  std::string failure(double limit_s = 10) {
    for (WaitClock clock; clock.elapsed() < Seconds{limit_s};
         std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      try {
        monitor_.check();
      } catch (const RankFailed& error) {
        return error.what();
      }
    }
    return "";
  }

 private:
  Monitor monitor_;
};

}  // namespace

TEST_CASE("ranks that join learn about each other", "[distributed]") {
  Store store = make_local_store();
  std::thread other([&] { join(store, 1, 2, elsewhere(1), "moe 1", Seconds{10}); });
  const auto members = join(store, 0, 2, elsewhere(0), "moe 1", Seconds{10});
  other.join();
  CHECK(describe(1, members[1]) == "rank 1 (host h1, pid 101)");
}

TEST_CASE("ranks that do not join are named", "[distributed]") {
  CHECK(join_failure(make_local_store(), 1, 4, 0.2) ==
        "ranks 0, 2, 3 of 4 did not join within 0.2 s of the start");
  CHECK_THAT(join_failure(make_local_store(), 0, 20, 0.2),
             contains_text("1, 2, 3, 4, 5, 6, 7, 8 and 11 more of 20"));
}

TEST_CASE("a second process of a rank, another version and another size are refused",
          "[distributed]") {
  Store store = make_local_store();
  claim_rank(store, 0);
  claim_rank(store, 1);
  CHECK_THAT(test::user_error_of([&] { claim_rank(store, 0); }),
             contains_text("rank 0") && contains_text("MASTER_PORT"));
  join_failure(store, 0, 2, 0.05);
  CHECK_THAT(join_failure(store, 1, 2, 5, "moe 2"), contains_text("rank 0 (host h0, pid 100)") &&
                                                        contains_text("moe 1") &&
                                                        contains_text("moe 2"));
  Store sizes = make_local_store();
  join_failure(sizes, 0, 2, 0.05);
  CHECK_THAT(join_failure(sizes, 1, 3, 5), contains_text("run of 2") && contains_text("run of 3"));
}

TEST_CASE("a rank that fails before all have joined is named", "[distributed]") {
  Store store = make_local_store();
  set_verdict(store, {0, 1, "rank 0 failed (no such folder)"});
  CHECK_THAT(join_failure(store, 1, 2, 5), contains_text("rank 0 failed (no such folder): before"));
}

TEST_CASE("the first verdict is valid for all ranks", "[distributed]") {
  Store store = make_local_store();
  CHECK(set_verdict(store, {0, 2, "first"}).text == "first");
  CHECK(set_verdict(store, {1, 1, "second"}).text == "first");
  const auto verdict = read_verdict(store);
  REQUIRE(verdict);
  CHECK((verdict->rank == 0 && verdict->exit_code == 2));
}

TEST_CASE("records that cannot be parsed end the run, and control characters are removed",
          "[distributed]") {
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string("{\"rank\": 1e99}"),
        std::string("\xff\xff"), std::string(5000, '[')}) {
    Store store = make_local_store();
    store.set("verdict", text);
    const auto verdict = read_verdict(store);
    REQUIRE(verdict);
    CHECK((verdict->rank == -1 && verdict->exit_code == 1));
    store.set("member/0", text);
    CHECK(join_failure(store, 1, 2, 1) != "");
  }
  Store store = make_local_store();
  CHECK(set_verdict(store, {1, 1, "\x1b]0;owned\x07"}).text.find('\x1b') == std::string::npos);
}

TEST_CASE("a rank that is not in the collective is named with its own position", "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(3)), second(store, 1, members_elsewhere(3)),
      late(store, 2, members_elsewhere(3));
  first.begin("all_to_all", {7, 3});
  second.begin("all_to_all", {7, 3});
  late.monitor().end(late.monitor().begin("all_reduce", {7, 2}));
  for (Rank* rank : {&first, &second}) {
    CHECK_THAT(rank->failure(),
               contains_text("rank 2 (host h2, pid 102) did not come (its last operation: step 7, "
                             "layer 2, all_reduce): step 7, layer 3, all_to_all, after "));
  }
  CHECK_THAT(late.failure(), contains_text("rank 2 (host h2, pid 102) did not come"));
}

TEST_CASE("a rank that does not answer is named", "[distributed]") {
  Rank first(make_local_store(), 0, members_elsewhere(2));
  first.begin("barrier", {});
  CHECK_THAT(first.failure(),
             contains_text("rank 1 (host h1, pid 101) does not answer: barrier, after "));
}

TEST_CASE("processes of this machine are seen to be gone or stopped", "[distributed]") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        pause();
      }
    }
    kill(child, signal);
    Member member = this_member("127.0.0.1");
    member.pid = child;
    Rank first(make_local_store(), 0, {this_member("127.0.0.1"), member});
    if (signal == SIGKILL) {
      first.monitor().report_broken("a connection broke");
      CHECK_THAT(first.failure(), contains_text("is gone: after the start"));
    } else {
      first.begin("all_reduce", {4, 2});
      CHECK_THAT(first.failure(), contains_text("is stopped: step 4, layer 2, all_reduce"));
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST_CASE("a rank that reports its own failure is named at once", "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  set_verdict(store, {1, 1, "rank 1 failed (the disk is full)"});
  CHECK(first.failure(1.5) == "rank 1 failed (the disk is full): step 4, layer 2, all_reduce");
}

TEST_CASE("ranks that all wait in one collective are not blamed", "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  second.begin("all_reduce", {4, 2});
  CHECK_THAT(first.failure(), contains_text("every rank waits and nothing arrives"));
}

TEST_CASE("a rank in a long operation is waited for, with the usual limit after it",
          "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  second.monitor().begin_long_operation();
  CHECK(first.failure(5) == "");
  second.monitor().end_long_operation();
  CHECK(first.failure(0.5) == "");
  CHECK_THAT(first.failure(3), contains_text("rank 1 (host h1, pid 101) did not come"));
}

TEST_CASE("nothing is written while all is well", "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  for (int i = 0; i < 50; ++i) {
    first.monitor().end(first.monitor().begin("all_reduce", {i, 0}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(first.failure(0.1) == "");
  CHECK_FALSE(store.read("verdict"));
  CHECK_FALSE(store.read("question/1"));
}

TEST_CASE("a question that nobody needs answered ends no run", "[distributed]") {
  Store store = make_local_store();
  Rank first(store, 0, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  store.set("question/1", "");
  CHECK(first.failure(1) == "");
}

TEST_CASE("a process that does not end is ended by the hard deadline", "[distributed]") {
  Store store = make_local_store();
  static std::atomic<bool> was_called = false;
  Monitor stuck(store, 0, members_elsewhere(2), Seconds{2}, -1,
                [](const RankFailed& failure) { was_called = failure.verdict.rank == 1; });
  set_verdict(store, {1, 1, "rank 1 is gone"});
  const auto begin = std::chrono::steady_clock::now();
  while (!was_called && std::chrono::steady_clock::now() - begin < 3 * Monitor::kHardDeadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(was_called);
}

}  // namespace moe::distributed
