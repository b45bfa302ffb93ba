#include "core/bench/upcycle.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/base/disk_probe.h"
#include "core/bench/environment.h"

namespace moe::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Waits until what this process has written to files below `folder` that it has open is on the
// disk.
void sync_open_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && target.string().starts_with(folder.string() + "/")) {
      ::fdatasync(std::stoi(entry.path().filename().string()));
    }
  }
}

// One upcycling and as many plain writes, by turns: whenever another piece of ours is written and
// synced, its clock stands still while as much is written plainly.
class ByTurns {
 public:
  explicit ByTurns(const std::filesystem::path& out)
      : folder_(std::filesystem::weakly_canonical(out).parent_path()), plain_(folder_) {}

  void on_bytes(uint64_t bytes) {
    if (bytes - seen_bytes_ >= kPiece_bytes) {
      write_plainly(bytes);
    }
  }

  // When all `bytes` of ours are written and synced.
  void finish(uint64_t bytes) { write_plainly(bytes); }

  double ours_s() const { return ours_s_; }
  double disk_s() const { return disk_s_; }

 private:
  static constexpr uint64_t kPiece_bytes = 1'000'000'000;

  void write_plainly(uint64_t bytes) {
    sync_open_files(folder_);
    ours_s_ += seconds_since(start_);
    const uint64_t piece = bytes - seen_bytes_;
    disk_s_ += piece == 0 ? 0 : plain_.append(piece);
    seen_bytes_ = bytes;
    start_ = Clock::now();
  }

  std::filesystem::path folder_;
  DiskProbe plain_;  // grows as ours does: blocks that were just freed are written faster
  Clock::time_point start_ = Clock::now();
  uint64_t seen_bytes_ = 0;
  double ours_s_ = 0, disk_s_ = 0;
};

}  // namespace

UpcycleReport bench_upcycle(const std::filesystem::path& dense, model::UpcycleSettings settings,
                            int64_t repeats) {
  UpcycleReport report;
  const io::Checkpoint parent(dense);
  const model::UpcyclePlan plan = model::plan_upcycle(parent, settings);
  report.bytes = plan.bytes;
  const uint64_t before = anonymous_bytes();
  std::vector<double> seconds, disk;
  for (int64_t i = 0; i < repeats; ++i) {
    ByTurns turns(settings.out);
    model::upcycle(parent, plan, settings, [&](uint64_t bytes) {
      report.anonymous = std::max(report.anonymous, std::max(anonymous_bytes(), before) - before);
      turns.on_bytes(bytes);
    });
    turns.finish(plan.bytes);
    seconds.push_back(turns.ours_s());
    disk.push_back(turns.disk_s());
    std::filesystem::remove_all(settings.out);
  }
  report.upcycle = timing_of(std::move(seconds));
  report.disk = timing_of(std::move(disk));
  return report;
}

OrderedJson to_json(const UpcycleReport& report) {
  const auto bytes = static_cast<double>(report.bytes);
  return {{"tensor_bytes", report.bytes},
          {"upcycle", to_json(report.upcycle)},
          {"disk", to_json(report.disk)},
          {"bytes_per_second", bytes / report.upcycle.median_s},
          {"disk_bytes_per_second", bytes / report.disk.median_s},
          {"disk_share", report.disk.median_s / report.upcycle.median_s},
          {"anonymous_bytes", report.anonymous}};
}

}  // namespace moe::bench
