// Runs of several processes, started by run_on_ranks(): the ranks execute this binary with the name
// of the hidden test case below, which is the program of a rank and exits as moe's main() does.

#include <ATen/Parallel.h>
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
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/user_error.h"

using namespace moe;
using at::Tensor;
using moe::test::contains_text;

namespace {

void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Behaviour of the other ranks meanwhile.
void behave(const std::string& way, distributed::Comm& comm) {
  if (way == "aborts_as_others_compute") {
    rest(6.5);
  } else if (way == "aborts_as_others_connect") {
    comm.part("some", {0, 1, 2});
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
  } else if (way == "computes_for_ever") {
    for (;;) {
      rest(1);
    }
  } else if (way == "exits") {
    std::_Exit(3);
  } else if (way == "hangs") {
    pause();
  } else if (way == "leaves") {
    return;
  } else if (way == "disagrees") {
    distributed::check_same_on_all_ranks(comm, "the settings",
                                         fmt::format("rank {}", comm.rank() / 2));
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
  test::RunResult result;
  double seconds = 0;
};

// Runs the program on `ranks` ranks.
Ended run_program(int64_t ranks, const std::string& way, int64_t culprit, double timeout_s = 20) {
  const test::TempDir streams;
  const std::string command = fmt::format(
      "RANKS={} WAY={} CULPRIT={} TIMEOUT={} {} 'the program of a rank' >{} 2>{} "
      "</dev/null",
      ranks, way, culprit, timeout_s,
      test::shell_quote(std::filesystem::read_symlink("/proc/self/exe")),
      test::shell_quote(streams / "out"), test::shell_quote(streams / "err"));
  const auto begin = std::chrono::steady_clock::now();
  const int status = std::system(("unset OMP_NUM_THREADS; " + command).c_str());  // NOLINT
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
           test::read_file(streams / "out"), test::read_file(streams / "err")},
          seconds.count()};
}

// Returns the limit in seconds of a run that takes `seconds` to find a failure: one second more,
// and twice the duration of a healthy run, because processes start slower on a busy machine or
// under a sanitizer.
double allowed(double seconds) {
  return seconds + 1 + 2 * std::max(1.0, run_program(3, "is_well", -1).seconds);
}

[[noreturn]] void end_with(int code, const char* words) {
  std::fprintf(stderr, "moe: %s\n", words);
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

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

TEST_CASE("a rank without a GPU of its own is refused") {
  CHECK(moe::distributed::rank_gpu(1, 2, false) == 1);
  CHECK_THAT(moe::test::user_error_of([] { moe::distributed::rank_gpu(1, 1, false); }),
             contains_text("--device cuda: rank 1 of this host has no GPU of its own (1 visible)"));
}

TEST_CASE("a rank takes the GPU of its number, or the only one that it sees") {
  using moe::distributed::rank_gpu;
  CHECK(rank_gpu(0, 1, true) == 0);
  CHECK(rank_gpu(5, 1, true) == 0);  // srun --gpus-per-task=1 shows each rank its own
  CHECK(rank_gpu(0, 8, true) == 0);
  CHECK(rank_gpu(7, 8, true) == 7);
  CHECK_THAT(moe::test::user_error_of([] { rank_gpu(4, 4, true); }),
             contains_text("--device cuda: rank 4 of this host has no GPU of its own (4 visible)"));
}

TEST_CASE("rank 0 speaks, and cores are shared out") {
  const auto [three, seconds] = run_program(3, "is_well", -1);
  CHECK(three.exit_code == 0);
  const int threads = std::max(1, usable_processors() / 3);
  CHECK_THAT(three.out, contains_text(fmt::format("729, {} threads\n", threads)));
  CHECK_THAT(three.out, !contains_text("only rank 0 is heard"));
  CHECK(three.err == "rank 0 writes\n");
}

TEST_CASE("one rank alone is this very process") {
  const auto one = run_program(1, "is_well", -1).result;
  CHECK(one.exit_code == 0);
  CHECK_THAT(one.out, contains_text("\n1, "));
  const auto refused = run_program(1, "refuses", -1).result;
  CHECK((refused.exit_code == 2 &&
         refused.err == "rank 0 writes\nmoe: no such folder; name another\n"));
}

TEST_CASE("what all ranks refuse is said once") {
  const auto result = run_program(3, "refuses", -1).result;
  CHECK(result.exit_code == 2);
  CHECK(result.err == "rank 0 writes\nmoe: no such folder; name another\n");
}

TEST_CASE("what one rank refuses is said with its rank") {
  const auto [result, seconds] = run_program(3, "refuses", 2);
  CHECK(result.exit_code == 2);
  CHECK(result.err == "rank 0 writes\nmoe: [rank 2] no such folder; name another\n");
  CHECK(seconds < allowed(7));
}

TEST_CASE("a rank that raises ends the run, with its words and its place") {
  const auto [result, seconds] = run_program(3, "raises", 1);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             contains_text("moe: rank 1 (host ") &&
                 contains_text(") failed (the disk is full): step 4, layer 2, all_reduce\n"));
  CHECK(seconds < allowed(7));
}

TEST_CASE("rank 0 may be the one that raises") {
  const auto [result, seconds] = run_program(3, "raises", 0);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             contains_text("moe: rank 0 (host ") && contains_text(") failed (the disk is full)"));
  CHECK(seconds < allowed(7));
}

TEST_CASE("a rank that dies is named, with its last words") {
  const auto aborted = run_program(3, "aborts", 1).result;
  CHECK(aborted.exit_code == 1);
  CHECK_THAT(aborted.err,
             contains_text("[rank 1] last words\n") && contains_text("moe: rank 1 (host ") &&
                 contains_text(") is gone (signal 6, Aborted): step 4, layer 2, all_reduce\n"));
  const auto ended = run_program(3, "exits", 2).result;
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.err,
             contains_text("moe: rank 2 (host ") && contains_text(") is gone (exit code 3): "));
}

// The others are not in a collective when the failure is known.
TEST_CASE("a rank that dies while others compute is named") {
  const auto result = run_program(3, "aborts_as_others_compute", 1).result;
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             contains_text(") is gone (signal 6, Aborted): after step 4, layer 1, all_reduce\n"));
}

TEST_CASE("a rank that dies while the others connect is named at once") {
  const auto [result, seconds] = run_program(3, "aborts_as_others_connect", 1);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, contains_text("moe: rank 1 (host ") &&
                             contains_text(") is gone (signal 6, Aborted): connecting\n"));
  CHECK(seconds < allowed(2));
}

TEST_CASE("an exception that ends a thread of a rank ends the run in one sentence") {
  const auto [result, seconds] = run_program(3, "throws_in_a_thread", 1);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             contains_text("moe: rank 1 (host ") && contains_text(") failed (watchdog): "));
  CHECK(result.err.find("frame #0") == std::string::npos);
  CHECK(seconds < allowed(20));
}

TEST_CASE("a rank that writes for longer than the time limit is waited for") {
  const auto result = run_program(3, "writes_slowly", 1, 2).result;
  CHECK(result.exit_code == 0);
  CHECK(result.err == "rank 0 writes\n");
}

TEST_CASE("a rank that is stopped as it writes is named") {
  const auto [result, seconds] = run_program(3, "stops_as_it_writes", 2, 2);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, contains_text("moe: rank 2 (host ") &&
                             contains_text(") does not answer: step 4, layer"));
  CHECK(seconds < allowed(2));
}

TEST_CASE("a rank that hangs is named within the time limit, with its own position") {
  for (const int64_t culprit : {0, 2}) {
    const auto [result, seconds] = run_program(3, "hangs", culprit, 2);
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.err, contains_text(fmt::format("moe: rank {} (host ", culprit)) &&
                               contains_text(") did not come (its last operation: step 4, layer 1, "
                                             "all_reduce): step 4, layer 2, all_reduce"));
    CHECK(seconds < allowed(2));
  }
}

// Ranks that call different collectives are a defect of the program. Gloo finds that sizes differ.
TEST_CASE("ranks that part ways end all the same") {
  const auto [result, seconds] = run_program(2, "leaves", 1, 2);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, contains_text("moe: ") && contains_text("step 4, layer "));
  CHECK(seconds < allowed(2));
}

TEST_CASE("an interruption keeps its exit code") {
  const auto result = run_program(3, "is_interrupted", -1).result;
  CHECK(result.exit_code == 130);
  CHECK(result.err == "rank 0 writes\nmoe: stopped after step 4; --resume goes on\n");
}

TEST_CASE("a disagreement is an error of the user") {
  const auto result = run_program(3, "disagrees", -1).result;
  CHECK(result.exit_code == 2);
  CHECK_THAT(
      result.err,
      contains_text("moe: rank 2 disagrees with rank 0 on the settings ('rank 1' where rank 0 "
                    "has 'rank 0'); start all ranks with the same\n"));
}
