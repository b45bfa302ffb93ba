// Power loss during moe train and moe upcycle: the file operations of a process are recorded and
// cut at every point, with some or all of the data lost that was not synced. A run must find its
// last complete checkpoint and the lines of metrics.jsonl up to it.
#include "tests/support/power_loss.h"

#include <set>

#include "core/io/checksums.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/observe/metrics.h"
#include "tests/support/run_binary.h"
#include "tests/support/train_world.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;

namespace {

constexpr std::string_view kRun = "run", kCheckpoints = "run/checkpoints";

struct Recorder {
  TempDir dir;
  fs::path root = fs::canonical(dir.path()) / "root", log = dir / "record";

  Recorder() { fs::create_directory(root); }
  std::string prefix() const {
    return "LD_PRELOAD=" + shell_quote(MOE_WRITE_RECORDER) +
           " WRITE_RECORDER_ROOT=" + shell_quote(root.string()) +
           " WRITE_RECORDER_LOG=" + shell_quote(log.string());
  }
};

std::vector<std::string> train_words(const TrainWorld& world, const fs::path& run) {
  const std::string rows = (world.dir / "rows.jsonl").string();
  std::vector<std::string> words = {
      "train", world.settings.model.string(), "-o", run.string(), "--data", rows, "--eval-data",
      rows};
  for (const char* word :
       {"--steps", "6", "--save-every", "2", "--keep", "1", "--lr", "1e-2", "--micro-batch", "4",
        "--eval-every", "3", "--threads", "1", "--cache", "off", "--quiet"}) {
    words.emplace_back(word);
  }
  return words;
}

int64_t step_in(const std::string& path) {
  const size_t place = path.rfind("/step-");
  const std::string digits = place == std::string::npos ? "" : path.substr(place + 6);
  const bool is_number =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoll(digits) : -1;
}

// The newest checkpoint that is on disk at a point of the record: renamed, with its folder synced.
class SavedCheckpoint {
 public:
  explicit SavedCheckpoint(const fs::path& root) : folder_((root / kCheckpoints).string()) {}
  void update(const RecordedWrite& one) {
    if (one.operation == 'C' && one.first == folder_) {
      inode_ = one.inode;
    } else if (one.operation == 'R' && fs::path(one.second).parent_path() == folder_ &&
               step_in(one.second) > 0) {
      renamed_ = step_in(one.second);
    } else if (one.operation == 'S' && one.inode == inode_) {
      newest_ = renamed_;
    }
  }
  int64_t newest() const { return newest_; }  // 0: none

 private:
  std::string folder_;
  uint64_t inode_ = 0;
  int64_t renamed_ = 0, newest_ = 0;
};

int64_t lines_up_to(const std::string& metrics, int64_t last) {
  std::istringstream lines(metrics);
  std::set<int64_t> steps;
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const Json json = Json::parse(line, nullptr, false);
    const int64_t step = json.is_object() ? json.value("step", int64_t{-1}) : -1;
    if (step >= 1 && step <= last) {
      steps.insert(step);
    }
  }
  return std::ssize(steps);
}

// Returns the step of the newest complete checkpoint in `root` after a power loss; 0: none. Checks
// that metrics.jsonl and samples.jsonl reach that step.
int64_t find_checkpoint(const fs::path& root, const Tree& tree) {
  const fs::path run = root / kRun;
  if (tree.count("run/settings.toml") == 0) {
    CHECK(tree.count("run/checkpoints/") == 0);
    return 0;  // the run had not begun
  }
  std::vector<std::string> damaged;
  const auto found = RunFolder(run, root / "no model", false).newest_whole(damaged);
  CHECK(damaged == std::vector<std::string>());
  if (!found) {
    return 0;
  }
  const int64_t step = read_train_state(*found).step;
  CHECK(found->filename() == fmt::format("step-{}", step));
  const std::string metrics = read_file(run / "metrics.jsonl");
  CHECK(lines_up_to(metrics, step) == step);
  const auto state = read_log_state(*found);
  REQUIRE(state.has_value());
  CHECK(metrics.size() >= state->metrics.bytes);
  CHECK(read_file(run / "samples.jsonl").size() >= state->samples.bytes);
  return step;
}

constexpr std::array kLosses = {Loss::kNothing, Loss::kAll,  Loss::kBytes,
                                Loss::kNames,   Loss::kSome, Loss::kSome};

}  // namespace

TEST_CASE("after a power loss at any point a run finds its last complete checkpoint", "[train]") {
  const TrainWorld world("top1+ir+fr");
  const Recorder recorder;
  const RunResult result = run_moe(train_words(world, recorder.root / kRun), recorder.prefix());
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const auto record = read_record(recorder.log);
  REQUIRE(record.size() > 100);

  const Tree whole = read_tree(recorder.root);
  const Tree final_model = part_of(whole, "run/final/");
  REQUIRE(final_model.count("model.safetensors") == 1);
  const TempDir left;
  const fs::path place = left / "root";
  std::mt19937 random(1);
  ReplayedFolder folder(recorder.root.string());
  SavedCheckpoint saved(recorder.root);
  std::set<size_t> seen;
  std::vector<Tree> resumable;
  int64_t states = 0;
  for (size_t cut = 0; cut < record.size(); ++cut) {
    folder.replay(record[cut]);
    saved.update(record[cut]);
    for (const Loss loss : kLosses) {
      const Tree tree = folder.after(loss, random);
      std::string key = std::to_string(saved.newest());
      for (const auto& [path, bytes] : tree) {
        key += path + '\0' + bytes + '\0';
      }
      if (!seen.insert(std::hash<std::string>{}(key)).second) {
        continue;
      }
      ++states;
      INFO("cut after operation " << cut << " of " << record.size() << " (" << record[cut].operation
                                  << " " << record[cut].first.substr(0, 200) << "), loss "
                                  << static_cast<int>(loss));
      write_tree(place, tree);
      CHECK(find_checkpoint(place, tree) >= saved.newest());
      const Tree model = part_of(tree, "run/final/");
      CHECK((tree.count("run/final/") == 0 || model == final_model));
      if (loss != Loss::kNothing && saved.newest() > 0 && states % 100 == 0) {
        resumable.push_back(tree);
      }
    }
  }
  CHECK(folder.after(Loss::kNothing, random) == whole);  // the record is complete
  CHECK(part_of(folder.after(Loss::kAll, random), "run/final/") == final_model);
  fmt::print("{} operations, {} states of the disk, {} resumed\n", record.size(), states,
             resumable.size());
  CHECK(states > 200);

  CHECK(resumable.size() >= 3);
  for (const auto& tree : resumable) {
    write_tree(recorder.root, tree);
    const RunResult again = run_moe(train_words(world, recorder.root / kRun));
    INFO(again.err);
    REQUIRE(again.exit_code == 0);
    CHECK(read_tree(recorder.root / kRun / "final") == final_model);
    CHECK(lines_up_to(read_file(recorder.root / kRun / "metrics.jsonl"), 6) == 6);
  }
}

TEST_CASE("after a power loss at any point an upcycled folder is old, new or absent", "[train]") {
  const TempDir parent;
  write_tiny_checkpoint(parent / "dense");
  const Recorder recorder;
  const auto upcycle = [&](const char* experts) {
    return run_moe({"upcycle", (parent / "dense").string(), "-o", (recorder.root / "out").string(),
                    "--experts", experts, "--force", "--quiet"},
                   recorder.prefix());
  };
  REQUIRE(upcycle("2").exit_code == 0);
  const Tree first = part_of(read_tree(recorder.root), "out/");
  REQUIRE(upcycle("4").exit_code == 0);
  const Tree second = part_of(read_tree(recorder.root), "out/");
  REQUIRE(first != second);

  std::mt19937 random(1);
  ReplayedFolder folder(recorder.root.string());
  int64_t none = 0, old = 0, fresh = 0;
  bool was_first = false;  // the first folder is synced
  for (const auto& one : read_record(recorder.log)) {
    folder.replay(one);
    for (const Loss loss : kLosses) {
      const Tree tree = folder.after(loss, random);
      const Tree out = part_of(tree, "out/");
      const bool is_there = tree.count("out/") == 1;
      CHECK((!is_there || out == first || out == second));
      CHECK((is_there || !was_first));
      none += is_there ? 0 : 1;
      old += is_there && out == first ? 1 : 0;
      fresh += is_there && out == second ? 1 : 0;
    }
    was_first = was_first || folder.after(Loss::kAll, random).count("out/") == 1;
  }
  CHECK((none > 0 && old > 0 && fresh > 0));
  CHECK(part_of(folder.after(Loss::kNothing, random), "out/") == second);
  CHECK(part_of(folder.after(Loss::kAll, random), "out/") == second);
}
