// SIGINT, SIGTERM and SIGHUP to moe train on 1, 2 and 4 processes: whichever process receives it, a
// checkpoint is saved, the exit code is 130, and the resumed run ends in the bytes of a run that
// was never interrupted.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

using namespace moe;
using test::read_file;
using test::run_moe;
using test::TempDir;

namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

bool wait_until(const std::function<bool()>& condition) {
  for (int poll = 0; poll < 24000; ++poll) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// A moe process in the background, in a process group of its own.
class Process {
 public:
  Process(const Words& arguments, const Variables& variables, const std::string& error_file,
          int ignored_signal = 0)
      : error_file_(error_file), pid_(fork()) {
    if (pid_ == 0) {
      setpgid(0, 0);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        std::signal(signal, signal == ignored_signal ? SIG_IGN : SIG_DFL);
      }
      unsetenv("OMP_WAIT_POLICY");
      unsetenv("GOMP_SPINCOUNT");
      int ends[2] = {-1, -1};
      if (pipe(ends) == 0) {  // the child holds both ends, so standard input never ends
        dup2(ends[0], STDIN_FILENO);
      }
      for (const auto& [name, value] : variables) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      dup2(open(error_file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), STDERR_FILENO);
      std::string binary = test::moe_binary();
      Words words = arguments;
      std::vector<char*> pointers = {binary.data()};
      for (auto& word : words) {
        pointers.push_back(word.data());
      }
      pointers.push_back(nullptr);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
  }
  ~Process() {
    if (!has_ended()) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::vector<pid_t> children() const {
    std::istringstream list(
        read_file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children"));
    return {std::istream_iterator<pid_t>(list), {}};
  }
  bool has_ended() {
    ended_ = ended_ || waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }
  // Waits for the end. Returns the exit code, or minus the signal.
  int exit_code() {
    REQUIRE(wait_until([this] { return has_ended(); }));
    UNSCOPED_INFO(read_file(error_file_));
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }

 private:
  std::string error_file_;
  pid_t pid_;
  int status_ = 0;
  bool ended_ = false;
};

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
      started.push_back(std::make_unique<Process>(
          words, variables, path("err" + std::to_string(rank)), ignored_signal));
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

// A folder with a tokenizer.
const std::string kModel = (test::source_folder() / "recipes/tiny/model").string();

}  // namespace

TEST_CASE("a signal to any process of a run saves a checkpoint, and the resumed run is equal",
          "[cli]") {
  const World world;
  const std::vector<Interruption> interruptions = {
      {1, Launch::kMoe, Target::kAll, SIGINT},
      {1, Launch::kMoe, Target::kAll, SIGHUP},
      {1, Launch::kMoe, Target::kAll, SIGTERM, 3},
      {2, Launch::kMoe, Target::kLauncher, SIGTERM},
      {2, Launch::kMoe, Target::kLauncher, SIGHUP},
      {2, Launch::kMoe, Target::kOne, SIGINT},
      {2, Launch::kMoe, Target::kAll, SIGTERM, 3},
      {4, Launch::kMoe, Target::kLauncher, SIGINT},
      {2, Launch::kEnvironment, Target::kAll, SIGTERM},
      {2, Launch::kEnvironment, Target::kOne, SIGHUP},
      {4, Launch::kEnvironment, Target::kAll, SIGINT},
  };
  for (const int processes : {1, 2, 4}) {
    const std::string whole = "whole" + std::to_string(processes);
    REQUIRE(run_moe(world.train(whole, processes, Launch::kMoe)).exit_code == 0);
    int number = 0;
    for (const auto& interruption : interruptions) {
      if (interruption.processes == processes) {
        const std::string run = whole + "-" + std::to_string(++number);
        world.check(interruption, run);
        CHECK(world.final_weights(run) == world.final_weights(whole));
      }
    }
  }
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
  const TempDir dir;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process({"tokenize", kModel, "-"}, {}, (dir / "err").string());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    REQUIRE_FALSE(process.has_ended());
    kill(process.pid(), signal);
    CHECK(process.exit_code() == -signal);
  }
}

TEST_CASE("OpenMP's spinning is bounded unless the user sets how threads wait", "[cli]") {
  const TempDir dir;
  const auto spin_count = [&](const Variables& variables) {
    Process process({"tokenize", kModel, "-"}, variables, (dir / "err").string());
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
