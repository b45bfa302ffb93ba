// Runs of several processes, started by run_on_ranks(): the ranks execute this binary with the name
// of the hidden test case below, which is the program of a rank and exits as moe's main() does.

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/distributed/comm.h"
#include "core/distributed/launch.h"
#include "core/distributed/process_group.h"
#include "tests/support/local_store.h"
#include "tests/support/run_binary.h"
#include "tests/support/user_error.h"

namespace moe::distributed {
namespace {

using namespace moe::test;
using at::Tensor;
using test::contains_text;

void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Behaviour of the other ranks while one fails.
void behave(const std::string& way, distributed::Comm& comm) {
  if (way == "aborts_as_others_compute") {
    rest(6.5);
  } else if (way == "aborts_as_others_connect") {
    comm.split({0, 1, 2});
  } else if (way == "writes_slowly" || way == "stops_as_it_writes") {
    distributed::on_all_ranks(&comm, [] {});
  }
}

// Failure of a rank at step 4, layer 2.
void misbehave(const std::string& way, distributed::Comm& comm) {
  if (way == "refuses") {
    throw UserError("no such folder; name another");
  } else if (way == "raises") {
    throw std::runtime_error("the disk is full\nat 0x123");
  } else if (way == "is_interrupted") {
    throw Interrupted("stopped after step 4; --resume goes on");
  } else if (way.starts_with("aborts")) {
    std::fputs("last words\n", stderr);
    std::abort();
  } else if (way == "writes_slowly") {
    distributed::on_all_ranks(&comm, [] { rest(5); });
  } else if (way == "stops_as_it_writes") {
    distributed::on_all_ranks(&comm, [] { kill(getpid(), SIGSTOP); });
  } else if (way == "throws_in_a_thread") {
    std::thread([] { throw std::runtime_error("watchdog\nframe #0: 0x123"); }).detach();
    rest(60);
  } else if (way == "exits") {
    std::_Exit(3);
  } else if (way == "hangs") {
    pause();
  }
}

// Runs six collectives. Rank 0 prints their result.
void program(distributed::Comm& comm, const std::string& way, int64_t culprit) {
  std::fprintf(stderr, "rank %d writes\n", static_cast<int>(comm.rank()));
  if (comm.rank() != 0) {
    std::puts("only rank 0 is heard");
  }
  const Tensor sum = at::ones({2});
  for (comm.trace = {4, 0}; comm.trace.layer < 6; ++comm.trace.layer) {
    const bool is_culprit = culprit < 0 || culprit == comm.rank();
    if (comm.trace.layer == 2 && way != "is_well") {
      is_culprit ? misbehave(way, comm) : behave(way, comm);
      if (is_culprit && way == "leaves") {
        return;
      }
    }
    comm.all_reduce(sum);
  }
  if (comm.rank() == 0) {
    fmt::print("{:g}, {} threads\n", sum[0].item<float>(), at::get_num_threads());
  }
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT: before any thread
  return value == nullptr ? "" : value;
}

struct Ended {
  RunResult result;
  double seconds = 0;
};

// Runs the program on `ranks` ranks.
Ended run_program(int64_t ranks, const std::string& way, int64_t culprit, double timeout_s = 20) {
  const TempDir streams;
  const std::string command = fmt::format(
      "RANKS={} WAY={} CULPRIT={} TIMEOUT={} {} 'the program of a rank' >{} 2>{} "
      "</dev/null",
      ranks, way, culprit, timeout_s, shell_quote(std::filesystem::read_symlink("/proc/self/exe")),
      shell_quote(streams / "out"), shell_quote(streams / "err"));
  const auto begin = std::chrono::steady_clock::now();
  const int status = std::system(("unset OMP_NUM_THREADS; " + command).c_str());  // NOLINT
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
           read_file(streams / "out"), read_file(streams / "err")},
          seconds.count()};
}

// Returns the limit in seconds of a run that takes `seconds` to find a failure: one second more,
// and twice the duration of a healthy run, because processes start slower on a busy machine or
// under a sanitizer.
double allowed(double seconds) {
  static const double healthy = run_program(3, "is_well", -1).seconds;
  return seconds + 1 + 2 * std::max(1.0, healthy);
}

[[noreturn]] void end_with(int code, const char* words) {
  std::fprintf(stderr, "moe: %s\n", words);
  std::fflush(nullptr);
  std::_Exit(code);
}

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

TEST_CASE("the program of a rank", "[.]") {
  try {
    distributed::RankSettings settings;
    settings.ranks = std::stoll(variable("RANKS"));
    settings.timeout_s = std::stod(variable("TIMEOUT"));
    distributed::run_on_ranks(settings, [](distributed::Comm& comm) {
      program(comm, variable("WAY"), std::stoll(variable("CULPRIT")));
    });
  } catch (const UserError& error) {
    end_with(2, error.what());
  } catch (const Interrupted& error) {
    end_with(130, error.what());
  } catch (const std::exception& error) {
    end_with(1, error.what());
  }
  std::fflush(nullptr);
  std::_Exit(0);
}

TEST_CASE("a rank uses the GPU of its local rank, or the only visible one") {
  using distributed::rank_gpu;
  CHECK(rank_gpu(1, 2, false) == 1);
  CHECK(rank_gpu(5, 1, true) == 0);  // srun --gpus-per-task=1 shows each rank its own
  CHECK(rank_gpu(0, 8, true) == 0);
  CHECK(rank_gpu(7, 8, true) == 7);
  CHECK_THAT(user_error_of([] { rank_gpu(1, 1, false); }),
             contains_text("rank 1 ") && contains_text("(1 visible)"));
  CHECK_THAT(user_error_of([] { rank_gpu(4, 4, true); }),
             contains_text("rank 4 ") && contains_text("(4 visible)"));
}

TEST_CASE("only rank 0 prints, and the ranks of a host divide its cores") {
  const auto [three, seconds] = run_program(3, "is_well", -1);
  CHECK(three.exit_code == 0);
  const int threads = std::max(1, usable_processors() / 3);
  CHECK_THAT(three.out, contains_text(fmt::format("729, {} threads\n", threads)));
  CHECK_THAT(three.out, !contains_text("only rank 0 is heard"));
  CHECK(three.err == "rank 0 writes\n");
  const auto one = run_program(1, "refuses", -1).result;  // in this process
  CHECK((one.exit_code == 2 && one.err == "rank 0 writes\nmoe: no such folder; name another\n"));
}

TEST_CASE("a failed rank ends the run with its exit code and is named with its position") {
  struct Case {
    const char* way;
    int64_t culprit;  // -1: all ranks
    int exit_code;
    double seconds;
    std::vector<std::string> facts;
    double timeout_s = 20;
  };
  const std::string place = "step 4, layer 2, all_reduce\n", aborted = "signal 6, Aborted): ";
  for (const auto& [way, culprit, exit_code, seconds, facts, timeout_s] : std::vector<Case>{
           {"refuses", -1, 2, 7, {"moe: no such folder; name another\n"}},
           {"refuses", 2, 2, 7, {"moe: [rank 2] no such folder; name another\n"}},
           {"is_interrupted", -1, 130, 7, {"moe: stopped after step 4; --resume goes on\n"}},
           {"raises", 1, 1, 7, {"moe: rank 1 (host ", " failed (the disk is full): " + place}},
           {"aborts", 1, 1, 7, {"[rank 1] last words\n", "moe: rank 1 (host ", aborted + place}},
           {"exits", 2, 1, 7, {"moe: rank 2 (host ", "(exit code 3): "}},
           // The others are not in a collective when the failure is known.
           {"aborts_as_others_compute", 1, 1, 10, {aborted + "after step 4, layer 1, all_reduce"}},
           {"aborts_as_others_connect", 2, 1, 2, {"moe: rank 2 (host ", aborted + "connecting\n"}},
           {"throws_in_a_thread", 1, 1, 20, {"moe: rank 1 (host ", " failed (watchdog): "}},
           {"stops_as_it_writes", 2, 1, 2, {"moe: rank 2 (host ", "step 4, layer"}, 2},
           {"hangs", 2, 1, 2, {"rank 2 (host ", "layer 1, all_reduce): step 4, layer 2"}, 2}}) {
    CAPTURE(way, culprit);
    const auto [result, took] = run_program(culprit == 2 ? 3 : 2, way, culprit, timeout_s);
    CHECK(result.exit_code == exit_code);
    for (const auto& fact : facts) {
      CHECK_THAT(result.err, contains_text(fact));
    }
    if (exit_code != 1) {  // one line of rank 0, one for the failure
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 2);
    }
    CHECK_THAT(result.err, !contains_text("frame #0"));
    CHECK(took < allowed(seconds));
  }
}

TEST_CASE("a rank that writes for longer than the time limit is waited for") {
  const auto result = run_program(2, "writes_slowly", 1, 2).result;
  CHECK(result.exit_code == 0);
  CHECK(result.err == "rank 0 writes\n");
}

// Ranks that call different collectives are a defect of the program. Gloo finds that sizes differ.
TEST_CASE("a run ends if a rank exits before the others") {
  const auto [result, seconds] = run_program(2, "leaves", 1, 2);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, contains_text("moe: ") && contains_text("step 4, layer "));
  CHECK(seconds < allowed(2));
}

// Joining a run, and naming the rank that keeps it from making progress. The ranks are in one
// process and share a store.

TEST_CASE("joined ranks get the list of all members") {
  Store store = test::make_local_store();
  std::thread other([&] { join_failure(store, 1, 2, 10); });
  claim_rank(store, 0, elsewhere(0));
  const auto members = join(store, 2, Seconds{10});
  other.join();
  CHECK(describe(1, members[1]) == "rank 1 (host h1, pid 101)");
}

TEST_CASE("ranks that do not join are named") {
  CHECK(join_failure(test::make_local_store(), 1, 4, 0.2) ==
        "ranks 0, 2, 3 of 4 did not join within 0.2 s of the start");
  CHECK_THAT(join_failure(test::make_local_store(), 0, 20, 0.2),
             contains_text("ranks 1, 2, 3, 4, 5, 6,") && contains_text("... of 20 did not join"));
}

TEST_CASE("a second process of a rank is refused") {
  Store store = test::make_local_store();
  claim_rank(store, 0, elsewhere(0));
  claim_rank(store, 0, elsewhere(0));  // the same process
  CHECK_THAT(test::user_error_of([&] { claim_rank(store, 0, elsewhere(5)); }),
             contains_text("rank 0") && contains_text("MASTER_PORT"));
  CHECK(store.read("member/0") == "h0\n10.0.0.0\nanother machine\n100");
}

TEST_CASE("a member that cannot be parsed has no control characters") {
  for (const std::string& text : {std::string(), std::string("{"), std::string("\x1b]0;owned\x07"),
                                  std::string("\xff\xff"), std::string(5000, '[')}) {
    Store store = test::make_local_store();
    store.set("member/0", text);
    const std::string member = describe(0, join(store, 1, Seconds{1}).front());
    CHECK((member.size() < 200 && member.find('\x1b') == std::string::npos));
    CHECK(member.find('\xff') == std::string::npos);
  }
}

TEST_CASE("a rank that fails before all have joined is named") {
  Store store = test::make_local_store();
  set_verdict(store, {0, 1, "rank 0 failed (no such folder)"});
  CHECK_THAT(join_failure(store, 1, 2, 5), contains_text("rank 0 failed (no such folder): before"));
}

TEST_CASE("the first verdict is valid for all ranks") {
  Store store = test::make_local_store();
  CHECK(set_verdict(store, {0, 2, "first"}).text == "first");
  CHECK(set_verdict(store, {1, 1, "second"}).text == "first");
  const auto verdict = read_verdict(store);
  REQUIRE(verdict);
  CHECK((verdict->rank == 0 && verdict->exit_code == 2));
}

TEST_CASE("records that cannot be parsed end the run, and control characters are removed") {
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

TEST_CASE("a rank that is not in the collective is named with its own position") {
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

TEST_CASE("a rank that does not answer after a connection broke has exited") {
  Rank first(test::make_local_store(), 0, members_elsewhere(2));
  first.group().report_broken("a connection broke");
  CHECK(first.failure() == "rank 1 (host h1, pid 101) has exited: after the start");
}

TEST_CASE("ranks that all wait in one collective are not blamed") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  second.begin("all_reduce", {4, 2});
  CHECK_THAT(first.failure(), contains_text("all ranks wait in a collective"));
}

TEST_CASE("a rank in a long operation is waited for, with the usual limit after it") {
  Store store = test::make_local_store();
  Rank first(store, 0, members_elsewhere(2)), second(store, 1, members_elsewhere(2));
  first.begin("all_reduce", {4, 2});
  auto operation = second.group().long_operation();
  CHECK(first.failure(2.5) == "");
  operation.reset();
  CHECK(first.failure(0.2) == "");
  CHECK_THAT(first.failure(), contains_text("rank 1 (host h1, pid 101) is not in the collective"));
}

TEST_CASE("healthy ranks write nothing to the store") {
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

}  // namespace
}  // namespace moe::distributed
