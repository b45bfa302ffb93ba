// The metrics log of a resumed run: no line is lost, later steps are removed, and the cost does not
// depend on the number of steps. A million steps:
//   build/cpu/core_train_test "[slow]"

#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "core/base/resources.h"
#include "core/train/observe/history.h"
#include "core/train/observe/metrics.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

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
  // Writes the steps up to `last` and returns a checkpoint of step `saved`.
  fs::path write_and_save(int64_t saved, int64_t last) {
    MetricsLog log = resume(0, {});
    write(log, 1, saved);
    const fs::path checkpoint = save(log, saved);
    write(log, saved + 1, last);
    return checkpoint;
  }
  // Returns the event file that the run wrote; "" if there is none.
  fs::path event_file() const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
        CHECK(found.empty());
        found = entry.path();
      }
    }
    return found;
  }
  std::string events() const { return read_file(event_file()); }
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

std::string line(int64_t step) { return Json{{"step", step}, {"loss", 0.5}}.dump() + "\n"; }

std::string lines(int64_t first, int64_t last) {
  std::string text;
  for (int64_t step = first; step <= last; ++step) {
    text += line(step);
  }
  return text;
}

// The file after keep_steps(), the steps of its callback and its return value.
struct Kept {
  std::string text;
  std::vector<int64_t> steps;
  int64_t damaged = 0;
};

Kept keep(const std::string& text, int64_t steps) {
  const TempDir dir;
  write_file(dir / "metrics.jsonl", text);
  Kept kept;
  StepLines file(dir / "metrics.jsonl", LinesPerStep::kOne);
  kept.damaged =
      file.keep_steps(steps, [&](const Json& json) { kept.steps.push_back(json["step"]); });
  file.append(R"({"step": 99})", 99);
  kept.text = read_file(dir / "metrics.jsonl");
  const std::string last = "{\"step\": 99}\n";
  REQUIRE(kept.text.ends_with(last));
  CHECK(file.mark().bytes == kept.text.size());
  kept.text.resize(kept.text.size() - last.size());
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
  return kept;
}

route::CounterValues layer_of_two_ranks() {
  route::CounterValues values;
  values.tokens = 8;
  values.requests = 8;
  values.dropped_requests = values.dropped_tokens = 3;
  values.unserved_tokens = 2;
  values.ir_tokens = 1;
  values.slots_total = 8;
  values.slots_used = 5;
  values.padding = 3;
  values.rows_sent = 4;
  values.entropy_sum = 4;
  values.tokens_per_expert = {6, 0};
  values.rank_dropped = {3, 0};
  values.rank_ir = {1, 0};
  return values;
}

// Checks time and memory of resuming after `steps` steps.
void check_cost(int64_t steps) {
  LoggedRun run;
  const fs::path checkpoint = run.write_and_save(steps, steps + 100);
  ::malloc_trim(0);                               // memory freed above would hide allocations below
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak of memory
  const uint64_t before = resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  MetricsLog log = run.resume(steps, checkpoint);
  log.report();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const uint64_t peak = std::max(peak_resident_bytes(), before);
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

TEST_CASE("a log resumed from a checkpoint is that of an uninterrupted run") {
  LoggedRun run;
  // Steps after the checkpoint are repeated below.
  const fs::path checkpoint = run.write_and_save(2500, 2600);
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

TEST_CASE("without a valid history.json in the checkpoint the log is rebuilt from the files") {
  LoggedRun run;
  const fs::path checkpoint = run.write_and_save(200, 230);
  SECTION("no history.json") { fs::remove(checkpoint / "history.json"); }
  SECTION("another event file") { write_file(run.event_file(), std::string(100'000, 'x')); }
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

TEST_CASE("lines missing in the middle of metrics.jsonl are reported and the others kept") {
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

TEST_CASE("lines missing at the end of metrics.jsonl are found by the checkpoint") {
  LoggedRun run;
  const fs::path checkpoint = run.write_and_save(30, 30);
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

TEST_CASE("event files of other programs are kept") {
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

TEST_CASE("resuming after 20,000 steps takes little time and memory") { check_cost(20'000); }

TEST_CASE("resuming after a million steps takes little time and memory", "[.][slow]") {
  check_cost(1'000'000);
}

// tests/interop/tensorboard_events.py reads event files with TensorBoard.

TEST_CASE("curves are the numbers of a line of metrics.jsonl") {
  using Curves = std::vector<std::pair<std::string, double>>;
  for (const auto& [line, curves] : std::vector<std::pair<const char*, Curves>>{
           {R"({"step": 3, "loss": 1.5, "lr": null, "tokens": 8, "dropped_share": 0.25,
               "layers": [{"layer": 2, "experts_per_token": 2, "requests": 9, "load": [1, 2]}]})",
            {{"train/loss", 1.5},
             {"routing/dropped_share", 0.25},
             {"layer_2/experts_per_token", 2.0}}},
           {R"({"step": 3, "z_loss": 1.5, "sequence_balance_loss": 2.5})",
            {{"train/sequence_balance_loss", 2.5}, {"train/z_loss", 1.5}}},
           {R"({"step": 0, "held_out_loss": 2.5, "evaluation_seconds": 1,
               "tasks": {"piqa": {"acc": 0.5, "acc_norm": 0.25, "acc_stderr": 0.1}}})",
            {{"train/held_out_loss", 2.5},
             {"tasks/piqa/acc", 0.5},
             {"tasks/piqa/acc_norm", 0.25}}}}) {
    CHECK((scalars(Json::parse(line)) == curves));
  }
}

TEST_CASE("an event file resumes at its mark if it is the same file") {
  const LoggedRun run;
  EventMark mark;
  std::string marked, whole;
  {
    EventFile events(run.folder, 0);
    events.append(Json::parse(R"({"step": 1, "loss": 2.5, "seconds": 0.5})"));
    mark = events.mark();
    marked = read_file(run.event_file());
    events.append(Json::parse(R"({"step": 2, "loss": 7, "seconds": 0.5})"));
    whole = read_file(run.event_file());
  }
  CHECK(mark.bytes == marked.size());
  const auto resume = [&](const std::string& text, const EventMark& from) {
    write_file(run.event_file(), text);
    auto events = EventFile::resume(run.folder, from);
    if (events) {
      events->append(Json::parse(R"({"step": 2, "loss": 2, "seconds": 0.5})"));
    }
    return events.has_value();
  };
  REQUIRE(resume(whole, mark));
  const std::string after = read_file(run.event_file());
  CHECK(after.starts_with(marked));
  CHECK(after != whole);
  CHECK(after.size() == whole.size());
  CHECK_FALSE(resume(marked.substr(0, marked.size() - 1), mark));
  CHECK_FALSE(resume(std::string(marked.size(), 'x'), mark));
  CHECK_FALSE(resume(whole, {0, 0, 0}));
  CHECK_FALSE(resume(whole, {mark.bytes, mark.sum + 1, 0}));
  fs::remove(run.event_file());
  CHECK_FALSE(EventFile::resume(run.folder, mark).has_value());
}

TEST_CASE("lines of later steps and an unfinished line are removed") {
  CHECK(keep(lines(1, 9), 4).text == lines(1, 4));
  CHECK(keep(lines(0, 9), 4).text == lines(0, 4));
  CHECK(keep(lines(1, 4) + R"({"step": 5)", 9).text == lines(1, 4));
  CHECK(keep(lines(1, 4), -1).text.empty());
  CHECK(keep("", 4).text.empty());
}

TEST_CASE("lines after a gap are kept up to the step") {
  const Kept kept = keep(lines(1, 10) + lines(21, 45), 40);
  CHECK(kept.text == lines(1, 10) + lines(21, 40));
  CHECK(kept.damaged == 0);
  CHECK(kept.steps.size() == 30);
}

TEST_CASE("invalid lines are removed and the lines around them kept") {
  const auto junk = GENERATE(std::string("{broken\n"), std::string("[1]\n"), std::string("\n"),
                             std::string(100, '\0') + "\n", std::string("{\"step\": \"x\"}\n"),
                             std::string("{\"step\": 3}\n"), std::string("{\"step\": 77}\n"));
  const Kept kept = keep(lines(1, 5) + junk + lines(6, 9), 8);
  CHECK(kept.text == lines(1, 5) + lines(6, 8));
  CHECK(kept.damaged == 1);
  CHECK((kept.steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(keep(lines(1, 5) + junk, 5).text == lines(1, 5));
}

TEST_CASE("a file is cut at a mark only if a line of that step ends there") {
  const TempDir dir;
  const fs::path file = dir / "metrics.jsonl";
  const auto cuts = [&](const LinesMark& mark) {
    write_file(file, lines(1, 30));
    StepLines open(file, LinesPerStep::kOne);
    const bool is_cut = open.cut_at(mark);
    CHECK(read_file(file) == (is_cut ? lines(1, 30).substr(0, mark.bytes) : lines(1, 30)));
    return is_cut;
  };
  const uint64_t bytes = lines(1, 20).size();
  CHECK(cuts({bytes, 20}));
  CHECK(cuts({0, -1}));
  CHECK(cuts({lines(1, 30).size(), 30}));
  CHECK_FALSE(cuts({bytes, 19}));
  CHECK_FALSE(cuts({bytes - 1, 20}));
  CHECK_FALSE(cuts({bytes + 1, 20}));
  CHECK_FALSE(cuts({lines(1, 31).size(), 31}));  // the file is shorter
}

TEST_CASE("a line longer than a read block is found") {
  const TempDir dir;
  const std::string text = line(1) + Json{{"step", 2}, {"x", std::string(200'000, 'x')}}.dump();
  write_file(dir / "metrics.jsonl", text + "\n" + std::string(150'000, 'y'));
  StepLines file(dir / "metrics.jsonl", LinesPerStep::kOne);
  CHECK(read_file(dir / "metrics.jsonl") == text + "\n");
  CHECK(file.cut_at({text.size() + 1, 2}));
}

TEST_CASE("a symbolic link or a folder in place of the file is refused") {
  const TempDir dir;
  write_file(dir / "other", "not of this run");
  fs::create_symlink(dir / "other", dir / "metrics.jsonl");
  const auto check_refused = [&] {
    CHECK_THAT(user_error_of([&] { StepLines(dir / "metrics.jsonl", LinesPerStep::kOne); }),
               contains_text((dir / "metrics.jsonl").string()));
  };
  check_refused();
  CHECK(read_file(dir / "other") == "not of this run");
  fs::remove(dir / "metrics.jsonl");
  fs::create_directory(dir / "metrics.jsonl");
  check_refused();
}

// The line of a step in metrics.jsonl, and the last learning rate of a model folder.

TEST_CASE("a step's metrics carry the counters of its layers, and their total") {
  StepRecord record;
  record.tokens = 8;
  record.moe_layers = {0, 2};
  record.layers = {layer_of_two_ranks(), layer_of_two_ranks()};
  record.row_bytes = 64;
  const OrderedJson json = to_json(record);
  CHECK(json["tokens"] == 8);
  CHECK(json["requests"] == 16);
  CHECK(json["dropped_share"] == 3.0 / 8);
  CHECK(json["unserved_share"] == 0.25);
  CHECK(json["bytes_sent"] == 2 * 8 * 64);
  CHECK(json["dropped_per_rank"] == OrderedJson({6, 0}));
  CHECK(json["dropped_rank_max"] == 6);
  CHECK(json["dropped_rank_mean"] == 3.0);
  CHECK(json["ir_rank_max"] == 2);
  CHECK(json["entropy"] == 0.5);
  CHECK(json["load_max_over_mean"] == 2.0);
  CHECK(json["dead_experts"] == 2);
  CHECK_FALSE(json.contains("load"));
  REQUIRE(json["layers"].size() == 2);
  CHECK(json["layers"][1]["layer"] == 2);
  CHECK(json["layers"][1]["bytes_sent"] == 2 * 4 * 64);
  CHECK(json["layers"][1]["load"] == OrderedJson({6, 0}));
  // The counters of core/route/README.md.
  for (const char* name : {"requests", "dropped_requests", "dropped_tokens", "unserved_tokens",
                           "fr_filled", "fr_rejected", "ir_tokens", "slots_total", "slots_used",
                           "padding", "load", "experts_per_token", "sparsity", "entropy",
                           "dead_experts", "dropped_per_rank", "ir_per_rank", "bytes_sent"}) {
    CHECK(json["layers"][0].contains(name));
  }
}

TEST_CASE("the last learning rate is that of the last complete line of the run, or none") {
  const TempDir dir;
  write_file(dir / "run/final/config.json", "{}");
  CHECK_FALSE(last_learning_rate(dir / "run/final"));  // no metrics.jsonl
  using Rate = std::optional<double>;
  for (const auto& [text, rate] :
       {std::pair<const char*, Rate>(R"({"step": 1, "lr": 0.5}
{"step": 2, "lr": 0.25}
{"step": 2, "held_out_loss": 1}
{"step": 3, "lr": 0.1)",
                                     0.25),
        {"{\"step\": 1, \"lr\": \"much\"}\n", Rate()},
        {"{\"step\": 1, \"lr\": 0.5}\n{\"step\": 2, \"lr\": \"much\"}\n3\n", 0.5},
        {"{\"step\": 1, \"lr\": 0.5}\nno JSON\n", Rate()}}) {
    write_file(dir / "run/metrics.jsonl", text);
    CHECK(last_learning_rate(dir / "run/final/") == rate);
  }
  CHECK_FALSE(last_learning_rate(dir / "run"));

  LogState state;
  state.history.add({{"step", 2}, {"lr", 0.125}}, "line 1");
  fs::create_directories(dir / "checkpoint");
  write_log_state(state, dir / "checkpoint");
  CHECK(last_learning_rate(dir / "checkpoint") == 0.125);
  write_file(dir / "checkpoint/history.json", "{");
  CHECK_FALSE(last_learning_rate(dir / "checkpoint"));

  write_file(dir / "moe/upcycle.json", R"({"source": {"last_learning_rate": 0.25}})");
  CHECK(last_learning_rate(dir / "moe") == 0.25);
  for (const char* damaged : {"{", "[]", R"({"source": 3})", R"({"source": {}})"}) {
    CAPTURE(damaged);
    write_file(dir / "moe/upcycle.json", damaged);
    CHECK_FALSE(last_learning_rate(dir / "moe"));
  }
  CHECK_FALSE(last_learning_rate(dir / "nowhere"));
}
