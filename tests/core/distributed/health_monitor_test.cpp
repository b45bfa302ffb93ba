// Which rank is found to keep the others from going on. Ranks are played here: each has a monitor
// of its own over one store, and beats when the test says so. Those of this machine are this
// process or a child of it, others are said to be elsewhere.

#include "core/distributed/health_monitor.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <set>
#include <utility>

#include "tests/core/distributed/rendezvous.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::distributed;
using test::elsewhere;

namespace {

constexpr Seconds kTimeout{0.6};  // so a heartbeat is due each 0.06 s, and 0.48 s are the limit
constexpr Seconds kLong{1.2};     // longer than any failure may take

// Ranks that have checked in, and which of them beat.
class Ranks {
 public:
  explicit Ranks(const std::vector<Member>& members,
                 const std::shared_ptr<Store>& store = local_store(), int64_t store_rank = -1)
      : rendezvous_(test::check_in_all(members, store)) {
    for (size_t rank = 0; rank < members.size(); ++rank) {
      Rendezvous& own = rendezvous_[rank];
      auto& monitor = monitors_.emplace_back(std::make_unique<HealthMonitor>(
          own, heartbeats_in_store(store, own.run()), rank, kTimeout, store_rank));
      all_.push_back(&monitor->join("all"));
      members_.push_back(static_cast<int64_t>(rank));
      beating.insert(rank);
    }
  }
  explicit Ranks(int64_t count) : Ranks(machines(count)) {}

  HealthMonitor& operator[](size_t rank) { return *monitors_[rank]; }
  Rendezvous& rendezvous(size_t rank) { return rendezvous_[rank]; }
  Communicator& all(size_t rank) { return *all_[rank]; }
  const std::vector<int64_t>& members() const { return members_; }

  void wait_in_all(size_t rank, int64_t number) {
    monitors_[rank]->begin_wait(all(rank), number, 7, 3, "all_to_all");
  }

  // What rank 0, which waits, finds within `seconds`; `meanwhile` runs between its looks.
  std::optional<FailureReport> wait(
      Seconds seconds, const std::function<void()>& meanwhile = [] {}) {
    return look_for(seconds, meanwhile, [this](Seconds waited) {
      return monitors_[0]->find_failure(waited, members_);
    });
  }
  std::optional<FailureReport> wait_after_break() {
    return look_for(
        kLong, [] {},
        [this](Seconds waited) { return monitors_[0]->find_broken(waited, members_); });
  }

  std::set<size_t> beating;

 private:
  static std::vector<Member> machines(int64_t count) {
    std::vector<Member> members;
    for (int64_t rank = 0; rank < count; ++rank) {
      members.push_back(elsewhere(rank));
    }
    return members;
  }

  template <typename Look>
  std::optional<FailureReport> look_for(Seconds seconds, const std::function<void()>& meanwhile,
                                        const Look& look) {
    for (WaitClock clock; clock.look() < seconds;) {
      meanwhile();
      for (const size_t rank : beating) {
        monitors_[rank]->write_heartbeat();
      }
      if (auto failure = look(clock.look())) {
        return failure;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return std::nullopt;
  }

  std::vector<Rendezvous> rendezvous_;
  std::vector<std::unique_ptr<HealthMonitor>> monitors_;
  std::vector<Communicator*> all_;
  std::vector<int64_t> members_;
};

std::string text_of(const std::optional<FailureReport>& failure) {
  return failure ? failure->text : "";
}

pid_t process_that_waits() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Something happens right after the next look at the final records.
class StoreThatMovesOn : public test::PublicStore {
 public:
  std::optional<std::string> read(const std::string& key) override {
    if (is_gone) {
      throw std::runtime_error("connection reset by peer");
    }
    const auto text = PublicStore::read(key);
    if (key == "final_records" && then) {
      std::exchange(then, nullptr)();
    }
    return text;
  }

  std::function<void()> then;
  bool is_gone = false;
};

Activity at(const std::string& waits_in, int64_t waits_for,
            const std::map<std::string, int64_t>& finished) {
  return {7, 3, "all_to_all", false, waits_in, waits_for, finished};
}

}  // namespace

TEST_CASE("whom a rank waits for follows from how far each is") {
  // 0 and 1 wait for the third operation of all, which 3 has behind it; 1 in a group of its own
  // with 2, which computes.
  const std::vector<Activity> activities = {
      at("all", 3, {{"all", 2}}),
      at("group", 5, {{"all", 2}, {"group", 4}}),
      at("", 0, {{"all", 2}, {"group", 4}}),
      at("", 0, {{"all", 3}, {"other", 1}}),
  };
  CHECK((awaited_ranks(activities, 0, {0, 1, 2, 3}) == std::vector<int64_t>{1, 2}));
  CHECK((awaited_ranks(activities, 0, {0, 1}) == std::vector<int64_t>{1, 2}));
  CHECK((awaited_ranks(activities, 1, {1, 2}) == std::vector<int64_t>{2}));
  CHECK(awaited_ranks(activities, 2, {1, 2}).empty());
  // A member that has not yet joined is waited for, other ranks without it are no members.
  const std::vector<Activity> connecting = {at("new", 1, {{"new", 0}}), at("", 0, {}),
                                            at("", 0, {})};
  CHECK((awaited_ranks(connecting, 0, {0, 2}) == std::vector<int64_t>{2}));
  // Two that wait for each other.
  const std::vector<Activity> crossed = {at("one", 1, {{"one", 0}, {"two", 0}}),
                                         at("two", 1, {{"one", 0}, {"two", 0}})};
  CHECK((awaited_ranks(crossed, 0, {0, 1}) == std::vector<int64_t>{1}));
}

TEST_CASE("a rank that stands still while others wait for it is stuck") {
  Ranks ranks(4);
  ranks.wait_in_all(0, 1);
  ranks.wait_in_all(1, 1);
  ranks[3].end_wait(ranks.all(3), 1);  // has done its part, and computes
  const WaitClock begin;
  WaitClock clock = begin;
  const auto failure = ranks.wait(kLong);
  CHECK(text_of(failure) == "rank 2 (host h2, pid 102) did not come");
  CHECK(failure->culprit == 2);
  const Seconds seconds = clock.look();
  CHECK((seconds > kTimeout / 2 && seconds < kTimeout + Seconds{0.2}));
}

TEST_CASE("a rank that goes on is waited for, until it stands still") {
  Ranks ranks(2);
  Communicator& group = ranks[1].join("group");
  ranks.wait_in_all(0, 1);
  int64_t number = 0;
  CHECK(text_of(ranks.wait(kLong, [&] { ranks[1].end_wait(group, ++number); })) == "");
  CHECK(ranks.wait(kLong)->culprit == 1);
}

TEST_CASE("who waits is not to blame, but whom it waits for") {
  Ranks ranks(4);
  ranks.wait_in_all(0, 1);
  Communicator& group = ranks[1].join("group");
  ranks[3].join("group");
  ranks[1].begin_wait(group, 2, 7, 3, "all_reduce");
  ranks[2].end_wait(ranks.all(2), 1);
  ranks[3].end_wait(ranks.all(3), 1);  // further than rank 1, which waits for it
  CHECK(text_of(ranks.wait(kLong)) == "rank 3 (host h3, pid 103) did not come");
}

TEST_CASE("a long operation that was announced may take its time") {
  Ranks ranks(3);
  ranks.wait_in_all(0, 1);
  ranks.wait_in_all(1, 1);
  ranks[2].begin_long_operation("saving a checkpoint");
  ranks[2].begin_long_operation("writing a part of it");
  ranks[2].end_long_operation();
  CHECK(text_of(ranks.wait(kLong)) == "");
  // It hides no rank that is missing.
  ranks[1].end_wait(ranks.all(1), 0);
  CHECK(ranks.wait(kLong)->culprit == 1);
  ranks.wait_in_all(1, 1);
  CHECK(text_of(ranks.wait(kLong)) == "");
  // Its process died there, or its host did.
  ranks.beating.erase(2);
  CHECK(ranks.wait(kLong)->culprit == 2);
  ranks.beating.insert(2);
  CHECK(text_of(ranks.wait(kLong)) == "");
  ranks[2].end_long_operation();
  CHECK(ranks.wait(kLong)->culprit == 2);
}

TEST_CASE("a rank without heartbeats is dead, also where it waited") {
  Ranks ranks(3);
  for (const size_t rank : {0, 1, 2}) {
    ranks.wait_in_all(rank, 1);
  }
  CHECK(text_of(ranks.wait(Seconds{0.1})) == "");
  ranks.beating.erase(1);
  CHECK(text_of(ranks.wait(kLong)) == "rank 1 (host h1, pid 101) did not come");
  // Also where all would wait for another, which takes its time.
  ranks[2].end_wait(ranks.all(2), 0);
  ranks[2].begin_long_operation("saving a checkpoint");
  CHECK(text_of(ranks.wait(kLong)) == "rank 1 (host h1, pid 101) did not come");
}

TEST_CASE("ranks that wait for different things are named with it") {
  Ranks ranks(2);
  ranks.wait_in_all(0, 1);
  ranks[1].begin_wait(ranks.all(1), 2, 7, 3, "barrier");
  CHECK(text_of(ranks.wait(kLong)) == "rank 1 (host h1, pid 101) waits elsewhere (barrier)");
  Ranks same(2);
  same.wait_in_all(0, 1);
  same.wait_in_all(1, 1);
  const auto failure = same.wait(kLong);
  CHECK((failure && failure->culprit == -1));
  CHECK(text_of(failure) == "every rank waits and nothing arrives");
}

// Ctrl-Z stops all ranks for longer than the limit; then this one looks first.
TEST_CASE("time during which this process was stopped does not count") {
  Ranks ranks(2);
  ranks.wait_in_all(0, 1);
  WaitClock clock;
  ranks[1].write_heartbeat();
  CHECK_FALSE(ranks[0].find_failure(clock.look(), ranks.members()).has_value());
  std::this_thread::sleep_for(Seconds{1.5});
  CHECK_FALSE(ranks[0].find_failure(clock.look(), ranks.members()).has_value());
  CHECK(clock.look() < kTimeout / 2);
}

TEST_CASE("of a broken connection the rank whose heartbeats ended is to blame") {
  Ranks ranks(3);
  for (const size_t rank : {0, 1, 2}) {
    ranks.wait_in_all(rank, 1);
  }
  ranks.beating.erase(2);
  CHECK(text_of(ranks.wait_after_break()) == "rank 2 (host h2, pid 102) is gone");
  ranks.beating.insert(2);
  CHECK_FALSE(ranks.wait(Seconds{0.1}).has_value());
  const auto failure = ranks.wait_after_break();
  CHECK((text_of(failure) == "a connection broke" && failure->culprit == -1));
  ranks.rendezvous(1).write_final_record({1, Ending::kFailed, 1, "the disk is full"});
  CHECK(text_of(ranks.wait_after_break()) == "rank 1 (host h1, pid 101) failed (the disk is full)");
}

TEST_CASE("a store that is gone went with the rank that served it") {
  for (const int64_t server : {1, -1}) {
    const auto store = std::make_shared<StoreThatMovesOn>();
    Ranks ranks({elsewhere(0), elsewhere(1)}, store, server);
    ranks.wait_in_all(0, 1);
    store->is_gone = true;
    const auto failure = ranks.wait(kLong);
    CHECK(text_of(failure) ==
          (server == 1 ? "rank 1 (host h1, pid 101) is gone" : "the launcher is gone"));
    CHECK(failure->culprit == server);
  }
}

TEST_CASE("a process of this machine is seen to stop and to die") {
  const pid_t child = process_that_waits();
  Member member = this_member("127.0.0.1");
  member.pid = child;
  CHECK(life_of(member) == Life::kAlive);
  CHECK(life_of(elsewhere(0)) == Life::kUnknown);
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  CHECK(life_of(member) == Life::kStopped);
  Ranks ranks({this_member("127.0.0.1"), member});
  ranks.beating.erase(1);
  ranks.wait_in_all(0, 1);
  CHECK(text_of(ranks.wait(kLong)) == describe(1, member) + " is stopped");
  kill(child, SIGKILL);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  CHECK(life_of(member) == Life::kGone);  // not yet reaped
  waitpid(child, nullptr, 0);
  CHECK(life_of(member) == Life::kGone);
  // At once: half a second for the words of its launcher, and no heartbeat need be missing.
  ranks.beating.insert(1);
  CHECK(text_of(ranks.wait_after_break()) == describe(1, member) + " is gone");
  ranks.rendezvous(0).write_final_record({1, Ending::kKilled, 1, "signal 9, Killed"});
  CHECK(text_of(ranks.wait(Seconds{0.1})) == describe(1, member) + " is gone (signal 9, Killed)");
}

TEST_CASE("a rank that blames another and ends while one looks is not to blame") {
  const pid_t child = process_that_waits();
  Member witness = this_member("127.0.0.1");
  witness.pid = child;
  const auto store = std::make_shared<StoreThatMovesOn>();
  Ranks ranks({this_member("127.0.0.1"), witness, elsewhere(2)}, store);
  ranks.wait_in_all(0, 1);
  ranks.wait_in_all(1, 1);
  store->then = [&] {
    ranks.rendezvous(1).write_final_record(
        {1, Ending::kAffected, 2, describe(2, elsewhere(2)) + " did not come", "..."});
    end(child);
  };
  const auto failure = ranks.wait(kLong);
  CHECK(text_of(failure) == "rank 2 (host h2, pid 102) did not come");
  CHECK(failure->culprit == 2);
}

TEST_CASE("what is no heartbeat, or out of range, is left out") {
  const auto store = std::make_shared<test::PublicStore>();
  Ranks ranks({elsewhere(0), elsewhere(1)}, store);
  ranks.wait_in_all(0, 1);
  ranks.beating.erase(1);
  const std::string head = R"({"beat": 1, "step": 1, "layer": 1, "operation": "\u001b[2Jx\ny", )";
  const std::string rest = R"("is_long_operation": true, "waits_in": "all", "waits_for": )";
  int64_t number = 0;
  const std::vector<std::string> wrong = {"",
                                          "no JSON",
                                          "[1]",
                                          "{}",
                                          std::string(1000, '['),
                                          head + rest + "1}",
                                          head + rest + R"(-1, "finished": {}})",
                                          head + rest + R"("1", "finished": {}})",
                                          head + rest + R"(1, "finished": {"all": -1}})",
                                          head + rest + R"(1, "finished": [1]})"};
  const auto failure = ranks.wait(kLong, [&] {
    store->set(ranks.rendezvous(0).run() + "/heartbeat/1", wrong[number++ % wrong.size()]);
  });
  CHECK(text_of(failure) == "rank 1 (host h1, pid 101) did not come");
  CHECK(number > static_cast<int64_t>(wrong.size()));
  // Names are shown, their control characters are not obeyed.
  int64_t beat = 10;
  const auto deadlock = ranks.wait(kLong, [&] {
    store->set(ranks.rendezvous(0).run() + "/heartbeat/1",
               fmt::format(R"({{"beat": {}, "step": 1, "layer": 1, "operation": "a\u001b[2Jb", )",
                           ++beat) +
                   R"("waits_in": "all", "waits_for": 2, "finished": {"all": 0}})");
  });
  CHECK(text_of(deadlock) == "rank 1 (host h1, pid 101) waits elsewhere (a?[2Jb)");
}

TEST_CASE("a thread of its own beats while the rank is busy") {
  Ranks ranks(2);
  ranks.beating.erase(1);
  ranks.wait_in_all(0, 1);
  ranks[1].begin_long_operation("reading the model");
  ranks[1].start();
  CHECK(ranks[1].interval() == kTimeout / 10);
  CHECK(text_of(ranks.wait(kLong)) == "");
}
