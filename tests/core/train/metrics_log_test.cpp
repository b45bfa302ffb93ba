// The log of a run that goes on: nothing is lost, later steps leave no trace, and what it costs
// does not depend on how many steps there were. What a million steps cost:
//   build/cpu/core_train_metrics_log_test "[slow]"
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "core/base/resources.h"
#include "core/train/observe/metrics.h"
#include "core/train/observe/report.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using moe::test::read_file;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

OrderedJson step_line(int64_t step) {
  const auto at = static_cast<double>(step);
  OrderedJson line = {{"step", step},
                      {"loss", 2 + std::sin(at)},
                      {"grad_norm", 1 + std::cos(at)},
                      {"lr", 1e-4},
                      {"total_tokens", 64 * step},
                      {"seconds", 0.25},
                      {"skipped_steps", step / 1000}};
  OrderedJson layers = OrderedJson::array();
  for (int64_t layer = 0; layer < 4; ++layer) {
    layers.push_back({{"layer", layer}, {"dropped_share", 0.125}, {"load", {step % 7, 3, 5, 8}}});
  }
  line["layers"] = layers;
  return line;
}

std::vector<TextSample> samples_of(int64_t step) {
  if (step % 10 != 0) {
    return {};
  }
  return {{step, "one", fmt::format("of {}", step)}, {step, "other", "text"}};
}

// A run's folder, and its log as a process of the run has it.
struct LoggedRun {
  TempDir dir;
  RunFolder folder{dir / "run", dir / "model", false};
  std::vector<std::string> notes;

  LoggedRun() { folder.begin("[train]\n", RunState::kNew); }

  void write(MetricsLog& log, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      log.append(step_line(step), samples_of(step));
    }
  }
  fs::path save(const MetricsLog& log, int64_t step) {
    const fs::path checkpoint = folder.checkpoint(step);
    fs::create_directories(checkpoint);
    write_log_state(log.state(), checkpoint);
    return checkpoint;
  }
  MetricsLog resume(int64_t step, const fs::path& checkpoint) {
    notes.clear();
    return {folder, step, checkpoint, notes};
  }
  std::string events() const {
    std::string bytes;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().filename().string().starts_with("events.")) {
        CHECK(bytes.empty());
        bytes = read_file(entry.path());
      }
    }
    return bytes;
  }
  // All of it but the times of events, which a file that is made anew does not share.
  std::string all(const MetricsLog& log) const {
    return read_file(folder.metrics()) + read_file(folder.samples()) +
           log.state().history.to_json().dump() + fmt::format("{}", events().size());
  }
};

// Of a run that was never stopped.
std::string never_stopped(int64_t steps) {
  LoggedRun run;
  MetricsLog log = run.resume(0, {});
  run.write(log, 1, steps);
  return run.all(log);
}

uint64_t peak_since_reset() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stoull(line.substr(6)) * 1024;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("a log that goes on from a checkpoint is that of a run never stopped", "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 2500);
    checkpoint = run.save(log, 2500);
    run.write(log, 2501, 2600);  // lost with the process, done again
  }
  const std::string before = run.events();
  MetricsLog log = run.resume(2500, checkpoint);
  CHECK(run.notes.empty());
  const std::string cut = run.events();
  CHECK(cut.size() < before.size());
  CHECK(before.starts_with(cut));
  run.write(log, 2501, 3000);
  CHECK(run.events().starts_with(cut));  // appended to, not made anew
  CHECK(run.all(log) == never_stopped(3000));
}

TEST_CASE("without the checkpoint's history the files are read and say the same", "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 200);
    checkpoint = run.save(log, 200);
    run.write(log, 201, 230);
  }
  SECTION("an older version wrote the checkpoint") { fs::remove(checkpoint / "history.json"); }
  SECTION("another event file of ours stands there") {
    for (const auto& entry : fs::directory_iterator(run.folder.path())) {
      if (entry.path().filename().string().starts_with("events.")) {
        write_file(entry.path(), std::string(100'000, 'x'));
      }
    }
  }
  SECTION("it is of another format") { write_file(checkpoint / "history.json", "{\"format\": 9}"); }
  SECTION("it says what cannot be") {
    Json json = Json::parse(read_file(checkpoint / "history.json"));
    const char* part = GENERATE("curves", "loads", "samples", "steps");
    json["history"][part] = "x";
    write_file(checkpoint / "history.json", json.dump());
  }
  MetricsLog log = run.resume(200, checkpoint);
  run.write(log, 201, 300);
  CHECK(run.all(log) == never_stopped(300));
}

TEST_CASE("lines that a power loss took are told, those behind the gap stay", "[train]") {
  LoggedRun run;
  std::string text;
  for (int64_t step = 1; step <= 40; ++step) {
    text += step > 10 && step <= 20 ? "" : step_line(step).dump() + "\n";
  }
  write_file(run.folder.metrics(), text);
  MetricsLog log = run.resume(35, {});
  REQUIRE(run.notes.size() == 1);
  CHECK(run.notes[0] == run.folder.metrics().string() +
                            ": the lines of steps 11 to 20 are missing; the others are kept, and "
                            "the run goes on as if none were");
  CHECK(log.state().history.missing == 10);
  CHECK(log.state().history.steps == 35);
  log.report();
  CHECK(read_file(run.folder.report()).find("10 steps have no line in metrics.jsonl") !=
        std::string::npos);
  const fs::path checkpoint = run.save(log, 35);
  const std::string kept = read_file(run.folder.metrics());
  CHECK(kept.ends_with(step_line(35).dump() + "\n"));
  run.resume(35, checkpoint);  // and the next time too
  CHECK(read_file(run.folder.metrics()) == kept);
  CHECK(run.notes.empty());
}

TEST_CASE("a checkpoint tells what its metrics file lost", "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 30);
    checkpoint = run.save(log, 30);
  }
  const std::string whole = read_file(run.folder.metrics());
  const auto lost = [&](const std::string& text) {
    write_file(run.folder.metrics(), text);
    MetricsLog log = run.resume(30, checkpoint);
    CHECK(log.state().history.curves().at("loss").points().size() == 30);  // the report has all
    return run.notes.empty() ? "" : run.notes.front();
  };
  CHECK(lost(whole).empty());
  CHECK(lost(whole.substr(0, whole.size() - 5)).find("steps 30 are missing") != std::string::npos);
  CHECK(lost("").find("steps 1 to 30 are missing") != std::string::npos);
  fs::remove(run.folder.metrics());
  CHECK(lost("").find("steps 1 to 30 are missing") != std::string::npos);
}

TEST_CASE("event files of other programs stay", "[train]") {
  LoggedRun run;
  const std::vector<std::string> others = {
      "events.out.tfevents.1763800000.host.42.0", "events.out.tfevents.mine",
      "events.out.tfevents.1.2.moe.bak", "events.out.tfevents.3.4.moe"};  // not in the run's list
  for (const auto& name : others) {
    write_file(run.folder.path() / name, "theirs");
  }
  run.folder.claim(run.folder.path() / "events.out.tfevents.1.2.moe");
  write_file(run.folder.path() / "events.out.tfevents.1.2.moe", "of an earlier start");
  run.resume(0, {});
  for (const auto& name : others) {
    CHECK(read_file(run.folder.path() / name) == "theirs");
  }
  CHECK_FALSE(fs::exists(run.folder.path() / "events.out.tfevents.1.2.moe"));
}

namespace {

// Going on after `steps` steps, against a fresh start: seconds and bytes of memory at most.
void check_cost(int64_t steps) {
  constexpr double kMostSeconds = 2;
  constexpr uint64_t kMostBytes = uint64_t{64} << 20;
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, steps);
    checkpoint = run.save(log, steps);
    run.write(log, steps + 1, steps + 100);
  }
  ::malloc_trim(0);  // what the writing above has freed would hide what going on takes
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak of memory counts from here
  const uint64_t before = resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  MetricsLog log = run.resume(steps, checkpoint);
  log.report();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const uint64_t peak = std::max(peak_since_reset(), before);
  UNSCOPED_INFO("metrics.jsonl " << fs::file_size(run.folder.metrics()) << " bytes, history.json "
                                 << fs::file_size(checkpoint / "history.json") << ", "
                                 << took.count() << " s, " << peak - before << " bytes, page "
                                 << fs::file_size(run.folder.report()));
  fmt::print(
      "{} steps: metrics.jsonl {}, history.json {}; goes on in {:.3f} s and {} more; page {}\n",
      steps, io::size_text(fs::file_size(run.folder.metrics())),
      io::size_text(fs::file_size(checkpoint / "history.json")), took.count(),
      io::size_text(peak - before), io::size_text(fs::file_size(run.folder.report())));
  CHECK(took.count() < kMostSeconds);
  CHECK(peak - before < kMostBytes);
  CHECK(fs::file_size(run.folder.report()) < 2'000'000);
  CHECK(log.state().history.steps == steps);
}

}  // namespace

TEST_CASE("going on after 20,000 steps costs little time and memory", "[train]") {
  check_cost(20'000);
}

TEST_CASE("going on after a million steps costs little time and memory", "[.][slow]") {
  check_cost(1'000'000);
}
