// SIGINT, SIGTERM and SIGHUP to moe train on 1, 2 and 4 (slow) processes: whichever receives it, a
// checkpoint is saved, the exit code is 130, and the resumed run ends in the bytes of a run that
// was never interrupted.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

using namespace moe;
using test::Process;
using test::read_file;
using test::run_moe;
using test::TempDir;
using test::wait_until;

namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

enum class Launch { kMoe, kEnvironment };     // --ranks N, or the variables of torchrun
enum class Target { kAll, kLauncher, kOne };  // kLauncher of --ranks N

struct Interruption {
  int processes;
  Launch launch;
  Target target;
  int signal;
  int times = 1;  // deliveries, 100 ms apart
};

class World {
 public:
  World() {
    test::write_tiny_checkpoint(dir_ / "dense");
    test::write_training_rows(dir_ / "rows.jsonl");
    REQUIRE(run_moe({"upcycle", path("dense"), "-o", path("moe"), "--experts", "4", "--ep-ranks",
                     "4", "--quiet"})
                .exit_code == 0);
  }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  Words train(const std::string& run, int processes, Launch launch, int steps = 0) const {
    if (steps == 0) {
      steps = processes == 1 ? 300 : 100;  // processes take longer for a step
    }
    Words words = {"train",
                   path("moe"),
                   "-o",
                   path(run),
                   "--data",
                   path("rows.jsonl"),
                   "--threads",
                   "1",
                   "--steps",
                   std::to_string(steps),
                   "--micro-batch",
                   "4",
                   "--global-batch",
                   "4",
                   "--lr",
                   "1e-2",
                   "--cache",
                   "off",
                   "--quiet"};
    if (processes > 1 && launch == Launch::kMoe) {
      words.insert(words.end(), {"--ranks", std::to_string(processes)});
    }
    return words;
  }

  // Starts the run: one process, or one of each rank.
  std::vector<std::unique_ptr<Process>> start(const Words& words, int processes, Launch launch,
                                              int ignored_signal = 0) const {
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
      started.push_back(std::make_unique<Process>(words, variables, ignored_signal));
    }
    return started;
  }

  size_t logged_steps(const std::string& run) const {
    const auto file = dir_ / run / "metrics.jsonl";
    const std::string text = std::filesystem::exists(file) ? read_file(file) : "";
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  bool has_checkpoint(const std::string& run) const {
    const auto folder = dir_ / run / "checkpoints";
    return std::filesystem::exists(folder) && !std::filesystem::is_empty(folder);
  }

  std::string final_weights(const std::string& run) const {
    return read_file(dir_ / run / "final/model.safetensors");
  }

  void check(const Interruption& interruption, const std::string& run) const {
    const auto& [processes, launch, target, signal, times] = interruption;
    INFO(processes << " processes, signal " << signal << ", launch "
                   << (launch == Launch::kMoe ? "--ranks" : "environment") << ", target "
                   << static_cast<int>(target));
    const Words words = train(run, processes, launch);
    {
      const auto started = start(words, processes, launch);
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
    }
    CHECK(has_checkpoint(run));
    for (const auto& process : start(words, processes, launch)) {
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

  TempDir dir_;
  mutable int port_offset_ = 0;
};

// Trains without an interruption, then with each of these, all of as many processes.
void check_interruptions(const World& world, const std::vector<Interruption>& interruptions) {
  const int processes = interruptions.front().processes;
  const std::string whole = "whole" + std::to_string(processes);
  REQUIRE(run_moe(world.train(whole, processes, Launch::kMoe)).exit_code == 0);
  for (size_t index = 0; index < interruptions.size(); ++index) {
    const std::string run = whole + "-" + std::to_string(index);
    world.check(interruptions[index], run);
    CHECK(world.final_weights(run) == world.final_weights(whole));
  }
}

// A folder with a tokenizer.
const std::string kModel = (test::source_folder() / "recipes/tiny/model").string();

}  // namespace

TEST_CASE("a signal to any process of a run saves a checkpoint, and the resumed run is equal",
          "[cli]") {
  const World world;
  check_interruptions(world, {
                                 {1, Launch::kMoe, Target::kAll, SIGINT},
                                 {1, Launch::kMoe, Target::kAll, SIGHUP},
                                 {1, Launch::kMoe, Target::kAll, SIGTERM, 3},
                             });
  check_interruptions(world, {
                                 {2, Launch::kMoe, Target::kLauncher, SIGTERM},
                                 {2, Launch::kMoe, Target::kLauncher, SIGHUP},
                                 {2, Launch::kMoe, Target::kOne, SIGINT},
                                 {2, Launch::kMoe, Target::kAll, SIGTERM, 3},
                                 {2, Launch::kEnvironment, Target::kAll, SIGTERM},
                                 {2, Launch::kEnvironment, Target::kOne, SIGHUP},
                             });
}

TEST_CASE("a signal to any of four processes saves a checkpoint, and the resumed run is equal",
          "[.][slow][cli]") {
  check_interruptions(World(), {
                                   {4, Launch::kMoe, Target::kLauncher, SIGINT},
                                   {4, Launch::kEnvironment, Target::kAll, SIGINT},
                               });
}

TEST_CASE("a signal that is ignored at the start stays ignored", "[cli]") {
  const World world;
  for (const int processes : {1, 2}) {
    const std::string run = "run" + std::to_string(processes);
    const Words words = world.train(run, processes, Launch::kMoe, 100);
    const auto started = world.start(words, processes, Launch::kMoe, /*ignored_signal=*/SIGHUP);
    REQUIRE(wait_until([&] { return world.logged_steps(run) > 5; }));
    for (const pid_t child : started.front()->children()) {
      kill(child, SIGHUP);
    }
    kill(started.front()->pid(), SIGHUP);
    CHECK(started.front()->exit_code() == 0);
  }
}

TEST_CASE("a command that has nothing to save ends by the signal", "[cli]") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process({"tokenize", kModel, "-"});
    std::this_thread::sleep_for(std::chrono::seconds(1));
    REQUIRE_FALSE(process.has_ended());
    kill(process.pid(), signal);
    CHECK(process.exit_code() == 128 + signal);
  }
}

TEST_CASE("OpenMP's spinning is bounded unless the user sets how threads wait", "[cli]") {
  const auto spin_count = [](const Variables& variables) {
    Process process({"tokenize", kModel, "-"}, variables);
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
  CHECK(spin_count({{"OMP_NUM_THREADS", "1"}}) == "2000");
  CHECK(spin_count({{"GOMP_SPINCOUNT", "7"}}) == "7");
  CHECK(spin_count({{"OMP_WAIT_POLICY", "PASSIVE"}}) == "unset");
}
