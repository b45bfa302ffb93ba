// Who takes part in a run, and how each ended, from what ranks that are played here write into one
// store. Most are said to be on other machines.

#include "core/distributed/rendezvous.h"

#include <thread>

#include "core/base/error.h"
#include "tests/core/distributed/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe;
using namespace moe::distributed;
using moe::test::contains_text;
using test::check_in_all;
using test::elsewhere;
using test::PublicStore;

namespace {

// What a rank says of strangers.
std::vector<std::string>& listen_for_strangers(Rendezvous& rank, std::vector<std::string>& said) {
  rank.on_stranger = [&said](const std::string& sentence) { said.push_back(sentence); };
  return said;
}

std::string failure_of(Rendezvous& rank) {
  const auto failure = rank.reported_failure();
  return failure ? failure->text : "";
}

const std::string kIgnored =
    " is of another run that uses the same MASTER_ADDR and MASTER_PORT; what it says is ignored";

}  // namespace

TEST_CASE("ranks that check in learn who the others are") {
  const auto ranks = check_in_all({elsewhere(0), elsewhere(1), elsewhere(2)});
  CHECK(describe(2, ranks[0].members()[2]) == "rank 2 (host h2, pid 102)");
}

TEST_CASE("who does not come is named") {
  Rendezvous rank(local_store(), 1, 4);
  CHECK_THROWS_WITH(rank.check_in(elsewhere(1), "moe", Seconds{0.2}),
                    "ranks 0, 2, 3 of 4 did not come within 0.2 s of the start");
}

TEST_CASE("who fails before all have come is named") {
  const auto store = local_store();
  Rendezvous(store, 0, 2).write_final_record({0, Ending::kUserError, 0, "no such folder"});
  Rendezvous rank(store, 1, 2);
  CHECK_THROWS_WITH(rank.check_in(elsewhere(1), "moe", Seconds{5}),
                    "rank 0 failed (no such folder): before all ranks had come");
}

TEST_CASE("another version is refused") {
  const auto store = local_store();
  Rendezvous other(store, 1, 3);
  CHECK_THROWS_AS(other.check_in(elsewhere(1), "moe 2", Seconds{0.1}), RankFailed);
  Rendezvous rank(store, 0, 3);
  CHECK_THROWS_WITH(rank.check_in(elsewhere(0), "moe 1", Seconds{5}),
                    "rank 1 (host h1, pid 101) runs moe 2, rank 0 (host h0, pid 100) runs moe 1; "
                    "start the same binary everywhere");
}

TEST_CASE("another number of ranks is refused") {
  const auto store = local_store();
  Rendezvous other(store, 1, 4), rank(store, 0, 3);
  CHECK_THROWS_AS(other.check_in(elsewhere(1), "moe", Seconds{0.1}), RankFailed);
  CHECK_THROWS_WITH(rank.check_in(elsewhere(0), "moe", Seconds{5}),
                    "rank 1 (host h1, pid 101) believes in 4 ranks, rank 0 (host h0, pid 100) in "
                    "3; start all with the same number");
}

TEST_CASE("two processes of one rank belong to two runs") {
  const auto store = local_store();
  Rendezvous first(store, 1, 3), second(store, 1, 3);
  CHECK_THROWS_AS(first.check_in(elsewhere(1), "moe", Seconds{0.1}), RankFailed);
  CHECK_THROWS_WITH(second.check_in(elsewhere(2), "moe", Seconds{5}),
                    contains_text("two processes say that they are rank 1 (host h1, pid 101)") &&
                        contains_text("give each run a port of its own"));
}

TEST_CASE("a final record names its rank, and passes on the culprit that it names") {
  auto ranks = check_in_all({elsewhere(0), elsewhere(1), elsewhere(2)});
  CHECK(failure_of(ranks[0]).empty());
  ranks[2].write_final_record({2, Ending::kDone});
  CHECK(failure_of(ranks[0]).empty());
  ranks[2].write_final_record({2, Ending::kFailed, 2, "the disk is full"});
  CHECK(failure_of(ranks[0]) == "rank 2 (host h2, pid 102) failed (the disk is full)");
  CHECK(ranks[0].reported_failure()->culprit == 2);

  auto others = check_in_all({elsewhere(0), elsewhere(1), elsewhere(2)});
  others[1].write_final_record(
      {1, Ending::kAffected, 2, "rank 2 (host h2, pid 102) is gone", "..."});
  CHECK(failure_of(others[0]) == "rank 2 (host h2, pid 102) is gone");
}

TEST_CASE("what is no final record, or out of range, is left out") {
  const auto store = local_store();
  auto ranks = check_in_all({elsewhere(0), elsewhere(1)}, store);
  const std::string good = R"("culprit": 1, "text": "t", "sentence": "s"})";
  for (const std::string& line : std::vector<std::string>{
           "no JSON", "[1, 2]", "{\"rank\": 1}", R"({"rank": 2, "ending": 3, )" + good,
           R"({"rank": -1, "ending": 3, )" + good, R"({"rank": 1, "ending": 6, )" + good,
           R"({"rank": 1, "ending": -1, )" + good, R"({"rank": 1.5, "ending": 3, )" + good,
           R"({"rank": "1", "ending": 3, )" + good, std::string(1000, '['),
           std::string("{\"rank\": 1, \"ending\": 3, \"text\": \"\xff\"}"),
           R"({"rank": 1, "ending": 3, "culprit": 2, "text": "t", "sentence": "s"})"}) {
    store->append("final_records", line + "\n");
  }
  CHECK(ranks[0].final_records().empty());
  CHECK(failure_of(ranks[0]).empty());
  // Words are shown, their control characters are not obeyed.
  store->append(
      "final_records",
      R"({"rank": 1, "ending": 3, "culprit": 1, "text": "a\u001b[2Jb\nc", "sentence": ""})"
      "\n");
  CHECK(failure_of(ranks[0]) == "rank 1 (host h1, pid 101) failed (a?[2Jb\nc)");
  store->append("final_records", R"({"rank": 0, "ending": 0, "culprit": 0, "text": ")" +
                                     std::string(2 << 20, 'x') + "\"}\n");
  CHECK(ranks[0].final_records().size() == 1);
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
  Rendezvous rank(store, 1, 2);
  CHECK_THROWS_WITH(rank.check_in(elsewhere(1), "moe", Seconds{0.2}),
                    "rank 0 of 2 did not come within 0.2 s of the start");
}

TEST_CASE("ranks that are all there let nobody in, and do not hear who is not let in") {
  const auto store = std::make_shared<PublicStore>();
  auto ranks = check_in_all({elsewhere(0), elsewhere(1)}, store);
  CHECK(ranks[0].run() == ranks[1].run());
  std::vector<std::string> said;
  listen_for_strangers(ranks[0], said);
  for (const int64_t size : {2, 8}) {
    Rendezvous stranger(store, size - 1, size);
    CHECK_THROWS_WITH(stranger.check_in(elsewhere(size - 1), "moe", Seconds{5}),
                      "another run uses the same MASTER_ADDR and MASTER_PORT, and has all its "
                      "ranks; give each run a port of its own");
    stranger.write_final_record({1, Ending::kFailed, 1, "it has no business here"});
  }
  Rendezvous(store, 1, 2).write_final_record({1, Ending::kUserError, 1, "who am I"});
  store->append("final_records",
                R"({"rank": 0, "ending": 3, "culprit": 0, "text": "", "sentence": ""})"
                "\n");
  CHECK(failure_of(ranks[0]).empty());
  CHECK(ranks[0].final_records().empty());
  CHECK(said == std::vector<std::string>{describe(1, elsewhere(1)) + kIgnored,
                                         describe(7, elsewhere(7)) + kIgnored,
                                         "a process that says it is rank 1" + kIgnored,
                                         "a process that says it is rank 0" + kIgnored});
  ranks[1].write_final_record({1, Ending::kFailed, 1, "the disk is full"});
  CHECK(failure_of(ranks[0]) == "rank 1 (host h1, pid 101) failed (the disk is full)");
}

TEST_CASE("of many strangers some are named") {
  const auto store = std::make_shared<PublicStore>();
  auto ranks = check_in_all({elsewhere(0), elsewhere(1)}, store);
  std::vector<std::string> said;
  listen_for_strangers(ranks[0], said);
  for (int stranger = 0; stranger < 100; ++stranger) {
    Rendezvous(store, 1, 2).write_final_record({1, Ending::kFailed, 1, "no"});
  }
  CHECK(ranks[0].final_records().empty());
  CHECK(said.size() == 8);
}

TEST_CASE("a list of ranks that names none of ours does not end the wait") {
  const auto store = std::make_shared<PublicStore>();
  for (const char* roster : {"none", "{}", R"({"run": "x", "tokens": []})",
                             R"({"run": "0123456789abcdef0123456789abcdef", "tokens": {}})"}) {
    store->set("roster", roster);
    Rendezvous rank(store, 1, 2);
    CHECK_THROWS_AS(rank.check_in(elsewhere(1), "moe", Seconds{0.05}), std::exception);
    CHECK(rank.members().empty());
  }
}
