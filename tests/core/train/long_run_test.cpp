// A run that goes on after very many steps, the whole program: what it costs above a fresh start.
//   build/cpu/core_train_long_run_test "[slow]"      a million steps
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "core/io/checksums.h"
#include "core/train/observe/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/train_world.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

struct Cost {
  int exit_code = -1;
  double seconds = 0;
  int64_t peak_bytes = 0;
};

Cost cost_of(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  const std::string binary = moe_binary();
  arguments.push_back(const_cast<char*>(binary.c_str()));
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, STDOUT_FILENO);
    ::execv(binary.c_str(), arguments.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, took.count(), usage.ru_maxrss * 1024};
}

// Makes the newest checkpoint of a run one of step `steps`, with the log of a run that got so far.
void move_to_step(const fs::path& run, int64_t steps) {
  RunFolder folder(run, "no model", false);
  const fs::path checkpoint = *folder.last_checkpoint();
  Json position = Json::parse(read_file(checkpoint / "state.json"));
  const int64_t from = position["step"];
  std::vector<std::string> notes;
  {
    MetricsLog log(folder, from, checkpoint, notes);
    std::istringstream lines(read_file(folder.metrics()));
    std::string last;
    for (std::string line; std::getline(lines, line);) {
      last = line;
    }
    OrderedJson line = OrderedJson::parse(last);
    for (int64_t step = from + 1; step <= steps; ++step) {
      line["step"] = step;
      line["loss"] = 2 + 1.0 / static_cast<double>(step);
      log.append(line);
    }
    write_log_state(log.state(), checkpoint);
  }
  CHECK(notes.empty());
  position["step"] = steps;
  write_file(checkpoint / "state.json", position.dump());
  io::write_checksums(checkpoint);
  fs::rename(checkpoint, folder.checkpoint(steps));
}

void check_cost(int64_t steps) {
  const TrainWorld world("top1+ir+fr");
  const auto words = [&](const std::string& run, int64_t last) {
    return std::vector<std::string>{"train",
                                    world.settings.model.string(),
                                    "-o",
                                    (world.dir / run).string(),
                                    "--data",
                                    (world.dir / "rows.jsonl").string(),
                                    "--steps",
                                    std::to_string(last),
                                    "--micro-batch",
                                    "4",
                                    "--threads",
                                    "1",
                                    "--cache",
                                    "off",
                                    "--quiet"};
  };
  const fs::path run = world.dir / "long";
  // Until it has taken a step, however slow the machine is.
  for (int seconds = 2; !fs::exists(run / "metrics.jsonl") || fs::is_empty(run / "metrics.jsonl");
       seconds *= 2) {
    REQUIRE(seconds < 200);
    const auto stopped =
        run_moe(words("long", steps + 1), fmt::format("timeout -s TERM {}", seconds));
    REQUIRE(stopped.exit_code == 124);
  }
  move_to_step(run, steps);
  Cost fresh = cost_of(words("fresh", 1));
  REQUIRE(fresh.exit_code == 0);
  const Cost again = cost_of(words("long", steps + 1));
  REQUIRE(again.exit_code == 0);
  fmt::print("{} steps, metrics.jsonl {}: a fresh start {:.2f} s, {}; going on {:.2f} s, {}\n",
             steps, io::size_text(fs::file_size(run / "metrics.jsonl")), fresh.seconds,
             io::size_text(static_cast<uint64_t>(fresh.peak_bytes)), again.seconds,
             io::size_text(static_cast<uint64_t>(again.peak_bytes)));
  CHECK(again.seconds < fresh.seconds + 2);
  CHECK(again.peak_bytes < fresh.peak_bytes + (int64_t{64} << 20));
  CHECK(fs::file_size(run / "report.html") < 2'000'000);
  const std::string metrics = read_file(run / "metrics.jsonl");
  const size_t last = metrics.rfind('\n', metrics.size() - 2) + 1;
  CHECK(Json::parse(metrics.substr(last))["step"] == steps + 1);
}

}  // namespace

TEST_CASE("a run of 20,000 steps goes on at the cost of a fresh start", "[train]") {
  check_cost(20'000);
}

TEST_CASE("a run of a million steps goes on at the cost of a fresh start", "[.][slow]") {
  check_cost(1'000'000);
}
