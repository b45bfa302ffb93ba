// SIGINT, SIGTERM and SIGHUP to moe train on 1, 2 and (slow) 4 processes. After a signal to any
// process, a checkpoint is saved and the exit code is 130. The resumed run gives bitwise the result
// of an uninterrupted run.

#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/cli/commands.h"
#include "tests/support/process.h"

using namespace moe;
using namespace moe::test;

namespace {

using Variables = std::map<std::string, std::string>;

enum class Launch { kMoe, kEnvironment };     // by --ranks N, or with the variables of torchrun
enum class Target { kAll, kLauncher, kOne };  // processes that receive the signal

struct Interruption {
  int processes;
  Launch launch;
  Target target;
  int signal;
  int times = 1;  // deliveries, 100 ms apart
};

class Fixture : public TrainingFixture {
 public:
  Fixture() { upcycle("moe", {"--ep-ranks", "4"}); }

  Args train(const std::string& run, int processes, Launch launch) const {
    const int steps = processes == 1 ? 300 : 60;  // a step with several processes is slower
    Args args = training({"--steps", std::to_string(steps), "--micro-batch", "4", "--global-batch",
                          "4", "--lr", "1e-2", "--cache", "off", "--quiet"},
                         "moe", run);
    if (processes > 1 && launch == Launch::kMoe) {
      args = joined(args, {"--ranks", std::to_string(processes)});
    }
    return args;
  }

  // Starts a run: one process, or one process per rank with Launch::kEnvironment.
  std::vector<std::unique_ptr<Process>> start(const Args& args, int processes,
                                              Launch launch) const {
    std::vector<std::unique_ptr<Process>> started;
    const int port = 20000 + (getpid() * 7 + ++port_offset_) % 12000;
    const int count = launch == Launch::kMoe ? 1 : processes;
    for (int rank = 0; rank < count; ++rank) {
      Variables variables = {{"OMP_NUM_THREADS", "1"}};
      if (launch == Launch::kEnvironment) {
        variables.insert({{"RANK", std::to_string(rank)},
                          {"LOCAL_RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(processes)},
                          {"LOCAL_WORLD_SIZE", std::to_string(processes)},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port)}});
      }
      started.push_back(std::make_unique<Process>(args, variables));
    }
    return started;
  }

  size_t logged_steps(const std::string& run) const {
    const auto file = dir / run / "metrics.jsonl";
    const std::string text = fs::exists(file) ? read_file(file) : "";
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  void check(const Interruption& interruption, const std::string& run) const {
    const auto& [processes, launch, target, signal, times] = interruption;
    INFO(processes << " processes, signal " << signal << ", launch "
                   << (launch == Launch::kMoe ? "--ranks" : "environment") << ", target "
                   << static_cast<int>(target));
    const Args args = train(run, processes, launch);
    {
      const auto started = start(args, processes, launch);
      REQUIRE(wait_until([&] { return logged_steps(run) > 10 || started.front()->has_ended(); }));
      for (int delivery = 0; delivery < times; ++delivery) {
        for (const pid_t pid : targets(started, launch, target)) {
          kill(pid, signal);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      for (const auto& process : started) {
        CHECK(process->exit_code() == 130);
      }
      CHECK(says(started.front()->result().err, "saved " + path(run) + "/checkpoints/step-"));
    }
    CHECK_FALSE(fs::is_empty(dir / run / "checkpoints"));
    for (const auto& process : start(args, processes, launch)) {
      CHECK(process->exit_code() == 0);
    }
  }

 private:
  static std::vector<pid_t> targets(const std::vector<std::unique_ptr<Process>>& started,
                                    Launch launch, Target target) {
    std::vector<pid_t> pids;
    if (launch == Launch::kMoe) {
      pids = started.front()->children();
      if (target == Target::kLauncher || pids.empty()) {
        return {started.front()->pid()};
      }
      if (target == Target::kAll) {
        pids.push_back(started.front()->pid());
      }
    } else {
      for (const auto& process : started) {
        pids.push_back(process->pid());
      }
    }
    return target == Target::kOne ? std::vector<pid_t>{pids.back()} : pids;
  }

  mutable int port_offset_ = 0;
};

// Trains without an interruption, then once with each of `interruptions`, and compares the weights.
// All interruptions must have the same number of processes.
void check_interruptions(const Fixture& fixture, const std::vector<Interruption>& interruptions) {
  const int processes = interruptions.front().processes;
  const std::string whole = "whole" + std::to_string(processes);
  succeed(fixture.train(whole, processes, Launch::kMoe));
  for (size_t index = 0; index < interruptions.size(); ++index) {
    const std::string run = whole + "-" + std::to_string(index);
    fixture.check(interruptions[index], run);
    CHECK(fixture.weights(run) == fixture.weights(whole));
  }
}

}  // namespace

TEST_CASE("a signal to any process of a run saves a checkpoint, and the resumed run is equal") {
  const Fixture fixture;
  check_interruptions(fixture, {{1, Launch::kMoe, Target::kAll, SIGTERM, 3}});
  check_interruptions(fixture, {{2, Launch::kMoe, Target::kOne, SIGINT},
                                {2, Launch::kEnvironment, Target::kAll, SIGHUP}});
}

TEST_CASE("every signal to every process of a run saves a checkpoint, and the resumed run is equal",
          "[.][slow]") {
  const Fixture fixture;
  check_interruptions(
      fixture, {{1, Launch::kMoe, Target::kAll, SIGINT}, {1, Launch::kMoe, Target::kAll, SIGHUP}});
  check_interruptions(fixture, {{2, Launch::kMoe, Target::kLauncher, SIGTERM},
                                {2, Launch::kMoe, Target::kLauncher, SIGHUP},
                                {2, Launch::kMoe, Target::kAll, SIGTERM, 3},
                                {2, Launch::kEnvironment, Target::kAll, SIGTERM},
                                {2, Launch::kEnvironment, Target::kOne, SIGHUP}});
  check_interruptions(fixture, {{4, Launch::kMoe, Target::kLauncher, SIGINT},
                                {4, Launch::kEnvironment, Target::kAll, SIGINT}});
}

TEST_CASE("a signal ends a command that has no checkpoint to save") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process({"tokenize", tiny("model"), "-"});
    std::this_thread::sleep_for(std::chrono::seconds(1));
    REQUIRE_FALSE(process.has_ended());
    kill(process.pid(), signal);
    CHECK(process.exit_code() == 128 + signal);
  }
}

TEST_CASE("moe sets GOMP_SPINCOUNT unless the user has set it or OMP_WAIT_POLICY") {
  const auto spin_count = [](const Variables& variables) {
    Process process({"tokenize", tiny("model"), "-"}, variables);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    REQUIRE_FALSE(process.has_ended());
    std::istringstream environment(
        read_file("/proc/" + std::to_string(process.pid()) + "/environ"));
    for (std::string entry; std::getline(environment, entry, '\0');) {
      if (entry.rfind("GOMP_SPINCOUNT=", 0) == 0) {
        return entry.substr(entry.find('=') + 1);
      }
    }
    return std::string("unset");
  };
  CHECK(spin_count({}) == "2000");
  CHECK(spin_count({{"GOMP_SPINCOUNT", "7"}}) == "7");
  CHECK(spin_count({{"OMP_WAIT_POLICY", "PASSIVE"}}) == "unset");
}
