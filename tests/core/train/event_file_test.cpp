// tests/interop/tensorboard_events.py reads event files with TensorBoard.

#include "core/train/observe/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

fs::path find_event_file(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      CHECK(found.empty());
      found = entry.path();
    }
  }
  return found;
}

// The folder of a run that has begun.
struct Run {
  TempDir dir;
  RunFolder folder{dir / "run", dir / "model", false};

  Run() { folder.begin("[train]\n", RunState::kNew); }
  const fs::path& path() const { return folder.path(); }
};

}  // namespace

TEST_CASE("curves are the numbers of a line of metrics.jsonl", "[train]") {
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

TEST_CASE("an event file resumes at its mark if it is the same file", "[train]") {
  const Run run;
  EventMark mark;
  std::string marked, whole;
  {
    EventFile events(run.folder, 0);
    events.append(Json::parse(R"({"step": 1, "loss": 2.5, "seconds": 0.5})"));
    mark = events.mark();
    marked = read_file(find_event_file(run.path()));
    events.append(Json::parse(R"({"step": 2, "loss": 7, "seconds": 0.5})"));
    whole = read_file(find_event_file(run.path()));
  }
  CHECK(mark.bytes == marked.size());
  const auto resume = [&](const std::string& text, const EventMark& from) {
    write_file(find_event_file(run.path()), text);
    auto events = EventFile::resume(run.folder, from);
    if (events) {
      events->append(Json::parse(R"({"step": 2, "loss": 2, "seconds": 0.5})"));
    }
    return events.has_value();
  };
  REQUIRE(resume(whole, mark));
  const std::string after = read_file(find_event_file(run.path()));
  CHECK(after.starts_with(marked));
  CHECK(after != whole);
  CHECK(after.size() == whole.size());
  CHECK_FALSE(resume(marked.substr(0, marked.size() - 1), mark));
  CHECK_FALSE(resume(std::string(marked.size(), 'x'), mark));
  CHECK_FALSE(resume(whole, {0, 0, 0}));
  CHECK_FALSE(resume(whole, {mark.bytes, mark.sum + 1, 0}));
  fs::remove(find_event_file(run.path()));
  CHECK_FALSE(EventFile::resume(run.folder, mark).has_value());
}
