// The metrics log of a resumed run: no line is lost, later steps are removed, and the cost does not
// depend on the number of steps. A million steps:
//   build/cpu/core_train_test "[slow]"
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "core/base/resources.h"
#include "core/train/observe/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
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
  // Returns all files of the log; of the events only the size, since their times differ.
  std::string all(const MetricsLog& log) const {
    return read_file(folder.metrics()) + read_file(folder.samples()) +
           log.state().history.to_json().dump() + fmt::format("{}", events().size());
  }
};

// Returns LoggedRun::all() of an uninterrupted run.
std::string uninterrupted(int64_t steps) {
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

TEST_CASE("a log resumed from a checkpoint is that of an uninterrupted run", "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 2500);
    checkpoint = run.save(log, 2500);
    run.write(log, 2501, 2600);  // steps after the checkpoint, repeated below
  }
  const std::string before = run.events();
  MetricsLog log = run.resume(2500, checkpoint);
  CHECK(run.notes.empty());
  const std::string cut = run.events();
  CHECK(cut.size() < before.size());
  CHECK(before.starts_with(cut));
  run.write(log, 2501, 3000);
  CHECK(run.events().starts_with(cut));
  CHECK(run.all(log) == uninterrupted(3000));
}

TEST_CASE("without a valid history.json in the checkpoint the log is rebuilt from the files",
          "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 200);
    checkpoint = run.save(log, 200);
    run.write(log, 201, 230);
  }
  SECTION("no history.json") { fs::remove(checkpoint / "history.json"); }
  SECTION("another event file") {
    for (const auto& entry : fs::directory_iterator(run.folder.path())) {
      if (entry.path().filename().string().starts_with("events.")) {
        write_file(entry.path(), std::string(100'000, 'x'));
      }
    }
  }
  SECTION("another format") { write_file(checkpoint / "history.json", "{\"format\": 9}"); }
  SECTION("invalid values") {
    Json json = Json::parse(read_file(checkpoint / "history.json"));
    const char* part = GENERATE("curves", "loads", "samples", "steps");
    json["history"][part] = "x";
    write_file(checkpoint / "history.json", json.dump());
  }
  MetricsLog log = run.resume(200, checkpoint);
  run.write(log, 201, 300);
  CHECK(run.all(log) == uninterrupted(300));
}

TEST_CASE("lines missing in the middle of metrics.jsonl are reported and the others kept",
          "[train]") {
  LoggedRun run;
  std::string text;
  for (int64_t step = 1; step <= 40; ++step) {
    text += step > 10 && step <= 20 ? "" : step_line(step).dump() + "\n";
  }
  write_file(run.folder.metrics(), text);
  MetricsLog log = run.resume(35, {});
  REQUIRE(run.notes.size() == 1);
  CHECK_THAT(run.notes[0],
             contains_text(run.folder.metrics().string()) && contains_text("steps 11 to 20"));
  CHECK(log.state().history.missing == 10);
  CHECK(log.state().history.steps == 35);
  log.report();
  CHECK_THAT(read_file(run.folder.report()), contains_text("10 steps"));
  const fs::path checkpoint = run.save(log, 35);
  const std::string kept = read_file(run.folder.metrics());
  CHECK(kept.ends_with(step_line(35).dump() + "\n"));
  run.resume(35, checkpoint);
  CHECK(read_file(run.folder.metrics()) == kept);
  CHECK(run.notes.empty());
}

TEST_CASE("lines missing at the end of metrics.jsonl are found by the checkpoint", "[train]") {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, 30);
    checkpoint = run.save(log, 30);
  }
  const std::string whole = read_file(run.folder.metrics());
  const auto note = [&](const std::string& text) {
    write_file(run.folder.metrics(), text);
    MetricsLog log = run.resume(30, checkpoint);
    CHECK(log.state().history.curves().at("loss").points().size() == 30);
    return run.notes.empty() ? "" : run.notes.front();
  };
  CHECK(note(whole).empty());
  CHECK_THAT(note(whole.substr(0, whole.size() - 5)), contains_text("steps 30 "));
  CHECK_THAT(note(""), contains_text("steps 1 to 30 "));
}

TEST_CASE("event files of other programs are kept", "[train]") {
  LoggedRun run;
  const std::vector<std::string> others = {
      "events.out.tfevents.1763800000.host.42.0", "events.out.tfevents.mine",
      "events.out.tfevents.1.2.moe.bak", "events.out.tfevents.3.4.moe"};  // not listed in .moe-run
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

// Checks time and memory of resuming after `steps` steps.
void check_cost(int64_t steps) {
  LoggedRun run;
  fs::path checkpoint;
  {
    MetricsLog log = run.resume(0, {});
    run.write(log, 1, steps);
    checkpoint = run.save(log, steps);
    run.write(log, steps + 1, steps + 100);
  }
  ::malloc_trim(0);                               // memory freed above would hide allocations below
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak of memory
  const uint64_t before = resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  MetricsLog log = run.resume(steps, checkpoint);
  log.report();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const uint64_t peak = std::max(peak_since_reset(), before);
  fmt::print("{} steps: metrics.jsonl {}, history.json {}; resumed in {:.3f} s with {}; page {}\n",
             steps, io::size_text(fs::file_size(run.folder.metrics())),
             io::size_text(fs::file_size(checkpoint / "history.json")), took.count(),
             io::size_text(peak - before), io::size_text(fs::file_size(run.folder.report())));
  CHECK(took.count() < 2);
  CHECK(peak - before < uint64_t{64} << 20);
  CHECK(fs::file_size(run.folder.report()) < 2'000'000);
  CHECK(log.state().history.steps == steps);
}

}  // namespace

TEST_CASE("resuming after 20,000 steps takes little time and memory", "[train]") {
  check_cost(20'000);
}

TEST_CASE("resuming after a million steps takes little time and memory", "[.][slow]") {
  check_cost(1'000'000);
}
