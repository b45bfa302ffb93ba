// Who is blamed, from notes of ranks that are played here: those of this machine are this process,
// others are said to be elsewhere.

#include "core/distributed/roll_call.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::distributed;
using Catch::Matchers::Contains;

namespace {

constexpr Seconds kRecent{20};

Member elsewhere(int64_t rank) {
  return {fmt::format("h{}", rank), fmt::format("10.0.0.{}", rank), "another machine", 100 + rank};
}

// All ranks' RollCalls over one store, checked in.
std::vector<RollCall> checked_in(const std::vector<Member>& members,
                                 const std::shared_ptr<Store>& store = local_store()) {
  std::vector<RollCall> rolls;
  const auto size = static_cast<int64_t>(members.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    rolls.emplace_back(store, rank, size);
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { rolls[rank].check_in(members[rank], "moe", Seconds{5}); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return rolls;
}

std::vector<RollCall> three_hosts() {
  return checked_in({elsewhere(0), elsewhere(1), elsewhere(2)});
}

pid_t process_that_waits() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  return child;
}

// Something happens right after the first look at the notices.
class StoreThatMovesOn : public Store {
 public:
  void set(const std::string& key, const std::string& text) override { store_->set(key, text); }
  void append(const std::string& key, const std::string& text) override {
    store_->append(key, text);
  }
  std::optional<std::string> read(const std::string& key) override {
    const auto text = store_->read(key);
    if (key == "notices" && then) {
      std::exchange(then, nullptr)();
    }
    return text;
  }
  bool is_private() const override { return store_->is_private(); }

  std::function<void()> then;

 private:
  std::shared_ptr<Store> store_ = local_store();
};

// A store that others reach too, as one behind a port.
class PublicStore : public StoreThatMovesOn {
 public:
  bool is_private() const override { return false; }
};

// What a rank told of strangers.
std::vector<std::string>& listen_for_strangers(RollCall& roll, std::vector<std::string>& said) {
  roll.on_stranger = [&said](const std::string& sentence) { said.push_back(sentence); };
  return said;
}

const std::string kIgnored =
    " is of another run that uses the same MASTER_ADDR and MASTER_PORT; what it says is ignored";

}  // namespace

TEST_CASE("ranks that come know each other") {
  const auto rolls = three_hosts();
  CHECK(describe(2, rolls[0].members()[2]) == "rank 2 (host h2, pid 102)");
}

TEST_CASE("who does not come is named") {
  RollCall roll(local_store(), 1, 4);
  CHECK_THROWS_WITH(roll.check_in(elsewhere(1), "moe", Seconds{0.2}),
                    "ranks 0, 2, 3 of 4 did not come within 0.2 s of the start");
}

TEST_CASE("who fails before all have come is named") {
  const auto store = local_store();
  RollCall(store, 0, 2).give_notice({0, Ending::kUserError, 0, "no such folder"});
  RollCall roll(store, 1, 2);
  CHECK_THROWS_WITH(roll.check_in(elsewhere(1), "moe", Seconds{5}),
                    "rank 0 failed (no such folder): before all ranks had come");
}

TEST_CASE("another version is refused") {
  const auto store = local_store();
  RollCall other(store, 1, 3);
  CHECK_THROWS_AS(other.check_in(elsewhere(1), "moe 2", Seconds{0.1}), RankFailed);
  RollCall roll(store, 0, 3);
  CHECK_THROWS_WITH(roll.check_in(elsewhere(0), "moe 1", Seconds{5}),
                    "rank 1 (host h1, pid 101) runs moe 2, rank 0 (host h0, pid 100) runs moe 1; "
                    "start the same binary everywhere");
}

TEST_CASE("another number of ranks is refused") {
  const auto store = local_store();
  RollCall other(store, 1, 4), roll(store, 0, 3);
  CHECK_THROWS_AS(other.check_in(elsewhere(1), "moe", Seconds{0.1}), RankFailed);
  CHECK_THROWS_WITH(roll.check_in(elsewhere(0), "moe", Seconds{5}),
                    "rank 1 (host h1, pid 101) believes in 4 ranks, rank 0 (host h0, pid 100) in "
                    "3; start all with the same number");
}

TEST_CASE("two processes of one rank belong to two runs") {
  const auto store = local_store();
  RollCall first(store, 1, 3), second(store, 1, 3);
  CHECK_THROWS_AS(first.check_in(elsewhere(1), "moe", Seconds{0.1}), RankFailed);
  CHECK_THROWS_WITH(second.check_in(elsewhere(2), "moe", Seconds{5}),
                    Contains("two processes say that they are rank 1 (host h1, pid 101)") &&
                        Contains("give each run a port of its own"));
}

TEST_CASE("a notice names its rank, and passes on whom it blames") {
  auto rolls = three_hosts();
  Verdict verdict;
  CHECK(rolls[0].bad_news(verdict).empty());
  rolls[2].give_notice({2, Ending::kDone});
  CHECK(rolls[0].bad_news(verdict).empty());
  rolls[2].give_notice({2, Ending::kFailed, 2, "the disk is full"});
  CHECK(rolls[0].bad_news(verdict) == "rank 2 (host h2, pid 102) failed (the disk is full)");
  CHECK(verdict.culprit == 2);

  auto others = three_hosts();
  others[1].give_notice({1, Ending::kAffected, 2, "rank 2 (host h2, pid 102) is gone", "..."});
  CHECK(others[0].who_is_late({0, 1}, kRecent)->text == "rank 2 (host h2, pid 102) is gone");
}

TEST_CASE("of a late operation the rank that waits nowhere is to blame") {
  auto rolls = three_hosts();
  rolls[1].wait_at("barrier");
  CHECK(rolls[0].who_is_late({0, 1, 2}, kRecent)->text == "rank 2 (host h2, pid 102) did not come");
  // Rank 1 is waited for, and waits for rank 2 in another part.
  CHECK(rolls[0].who_is_late({0, 1}, kRecent)->culprit == 2);
  rolls[2].wait_at("all_reduce");
  CHECK(rolls[0].who_is_late({0, 1}, kRecent)->text ==
        "rank 1 (host h1, pid 101) waits elsewhere (barrier)");
  rolls[1].go_on();
  CHECK(rolls[0].who_is_late({0, 1, 2}, kRecent)->culprit == 1);
}

TEST_CASE("work of its own excuses a rank for as long as it tells of it") {
  auto rolls = three_hosts();
  rolls[1].wait_at("barrier");
  rolls[2].tell_own_work();
  CHECK_FALSE(rolls[0].who_is_late({0, 1, 2}, kRecent).has_value());
  CHECK_FALSE(rolls[0].who_is_late({0, 1}, kRecent).has_value());  // rank 1 waits for rank 2
  // It says no more: nobody knows for how long.
  std::this_thread::sleep_for(Seconds{0.3});
  CHECK(rolls[0].who_is_late({0, 1, 2}, Seconds{0.2})->culprit == 2);
  rolls[2].tell_own_work();
  CHECK_FALSE(rolls[0].who_is_late({0, 1, 2}, Seconds{0.2}).has_value());
  // A rank at work hides none that is missing.
  rolls[1].go_on();
  CHECK(rolls[0].who_is_late({0, 1, 2}, kRecent)->text == "rank 1 (host h1, pid 101) did not come");
}

TEST_CASE("of a broken connection the rank at its address is to blame") {
  auto rolls = three_hosts();
  const Verdict verdict =
      rolls[0].who_broke_off("Connection closed by peer [10.0.0.2]:4711", {0, 1, 2});
  CHECK(verdict.text == "rank 2 (host h2, pid 102) is gone");
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
  auto rolls = checked_in({this_member("127.0.0.1"), member});
  CHECK(rolls[0].who_is_late({0, 1}, kRecent)->text == describe(1, member) + " is stopped");
  kill(child, SIGKILL);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  CHECK(life_of(member) == Life::kGone);  // not yet reaped
  CHECK(rolls[0].who_broke_off("broken pipe", {0, 1}).text == describe(1, member) + " is gone");
  waitpid(child, nullptr, 0);
  CHECK(life_of(member) == Life::kGone);
}

TEST_CASE("a rank that blames another and ends while one looks is not to blame") {
  const pid_t child = process_that_waits();
  Member witness = this_member("127.0.0.1");
  witness.pid = child;
  const auto store = std::make_shared<StoreThatMovesOn>();
  auto rolls = checked_in({this_member("127.0.0.1"), witness, elsewhere(2)}, store);
  rolls[1].wait_at("all_reduce");
  store->then = [&] {
    rolls[1].give_notice(
        {1, Ending::kAffected, 2, describe(2, elsewhere(2)) + " did not come", "..."});
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  const auto verdict = rolls[0].who_is_late({0, 1, 2}, kRecent);
  CHECK(verdict->text == "rank 2 (host h2, pid 102) did not come");
  CHECK(verdict->culprit == 2);
}

TEST_CASE("what is no notice, or out of range, is left out") {
  const auto store = local_store();
  auto rolls = checked_in({elsewhere(0), elsewhere(1)}, store);
  const std::string good = R"("culprit": 1, "text": "t", "sentence": "s"})";
  for (const std::string& line : std::vector<std::string>{
           "no JSON", "[1, 2]", "{\"rank\": 1}", R"({"rank": 2, "ending": 3, )" + good,
           R"({"rank": -1, "ending": 3, )" + good, R"({"rank": 1, "ending": 6, )" + good,
           R"({"rank": 1, "ending": -1, )" + good, R"({"rank": 1.5, "ending": 3, )" + good,
           R"({"rank": "1", "ending": 3, )" + good, std::string(1000, '['),
           std::string("{\"rank\": 1, \"ending\": 3, \"text\": \"\xff\"}"),
           R"({"rank": 1, "ending": 3, "culprit": 2, "text": "t", "sentence": "s"})"}) {
    store->append("notices", line + "\n");
  }
  Verdict verdict;
  CHECK(rolls[0].notices().empty());
  CHECK(rolls[0].bad_news(verdict).empty());
  // Words are shown, their control characters are not obeyed.
  store->append(
      "notices",
      R"({"rank": 1, "ending": 3, "culprit": 1, "text": "a\u001b[2Jb\nc", "sentence": ""})"
      "\n");
  CHECK(rolls[0].bad_news(verdict) == "rank 1 (host h1, pid 101) failed (a?[2Jb\nc)");
  store->append("notices", R"({"rank": 0, "ending": 0, "culprit": 0, "text": ")" +
                               std::string(2 << 20, 'x') + "\"}\n");
  CHECK(rolls[0].notices().size() == 1);
}

TEST_CASE("who says that it came without saying who it is has not come") {
  const auto store = local_store();
  for (const char* line : {"{}", "\"rank 0\"", R"({"rank": 0})",
                           R"({"rank": 0, "host": 1, "address": "", "machine": "", "pid": 1,
                               "version": "moe", "size": 2})",
                           R"({"rank": 2, "host": "h", "address": "", "machine": "", "pid": 1, )"
                           R"("version": "moe", "size": 2})",
                           R"({"rank": 0, "host": "h", "address": "", "machine": "", "pid": -1, )"
                           R"("version": "moe", "size": 2})"}) {
    store->append("members", std::string(line) + "\n");
  }
  RollCall roll(store, 1, 2);
  CHECK_THROWS_WITH(roll.check_in(elsewhere(1), "moe", Seconds{0.2}),
                    "rank 0 of 2 did not come within 0.2 s of the start");
}

TEST_CASE("ranks that are all there let nobody in, and do not hear who is not let in") {
  const auto store = std::make_shared<PublicStore>();
  auto rolls = checked_in({elsewhere(0), elsewhere(1)}, store);
  CHECK(rolls[0].run() == rolls[1].run());
  std::vector<std::string> said;
  listen_for_strangers(rolls[0], said);
  for (const int64_t size : {2, 8}) {
    RollCall stranger(store, size - 1, size);
    CHECK_THROWS_WITH(stranger.check_in(elsewhere(size - 1), "moe", Seconds{5}),
                      "another run uses the same MASTER_ADDR and MASTER_PORT, and has all its "
                      "ranks; give each run a port of its own");
    stranger.give_notice({1, Ending::kFailed, 1, "it has no business here"});
  }
  RollCall(store, 1, 2).give_notice({1, Ending::kUserError, 1, "who am I"});
  store->append("notices", R"({"rank": 0, "ending": 3, "culprit": 0, "text": "", "sentence": ""})"
                           "\n");
  Verdict verdict;
  CHECK(rolls[0].bad_news(verdict).empty());
  CHECK(rolls[0].notices().empty());
  CHECK(said == std::vector<std::string>{describe(1, elsewhere(1)) + kIgnored,
                                         describe(7, elsewhere(7)) + kIgnored,
                                         "a process that says it is rank 1" + kIgnored,
                                         "a process that says it is rank 0" + kIgnored});
  rolls[1].give_notice({1, Ending::kFailed, 1, "the disk is full"});
  CHECK(rolls[0].bad_news(verdict) == "rank 1 (host h1, pid 101) failed (the disk is full)");
}

TEST_CASE("of many strangers some are named") {
  const auto store = std::make_shared<PublicStore>();
  auto rolls = checked_in({elsewhere(0), elsewhere(1)}, store);
  std::vector<std::string> said;
  listen_for_strangers(rolls[0], said);
  for (int stranger = 0; stranger < 100; ++stranger) {
    RollCall(store, 1, 2).give_notice({1, Ending::kFailed, 1, "no"});
  }
  CHECK(rolls[0].notices().empty());
  CHECK(said.size() == 8);
}

TEST_CASE("a list of ranks that names none of ours does not end the wait") {
  const auto store = std::make_shared<PublicStore>();
  for (const char* roster : {"none", "{}", R"({"run": "x", "tokens": []})",
                             R"({"run": "0123456789abcdef0123456789abcdef", "tokens": {}})"}) {
    store->set("roster", roster);
    RollCall roll(store, 1, 2);
    CHECK_THROWS_AS(roll.check_in(elsewhere(1), "moe", Seconds{0.05}), std::exception);
    CHECK(roll.members().empty());
  }
}
