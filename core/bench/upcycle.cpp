#include "core/model/convert/upcycle.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"

namespace moe::bench {

namespace {

// Syncs the files below `folder` that this process has open.
void sync_open_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && target.string().starts_with(folder.string() + "/")) {
      ::fdatasync(std::stoi(entry.path().filename().string()));
    }
  }
}

// Times upcycling and plain writes in turns: after each gigabyte that upcycling has written and
// synced, its clock is stopped while as many bytes are written plainly.
struct InterleavedTimer {
  static constexpr uint64_t kTurnBytes = 1'000'000'000;

  explicit InterleavedTimer(const std::filesystem::path& out)
      : folder(std::filesystem::weakly_canonical(out).parent_path()), probe(folder) {}

  // Ends the turn of upcycling, which has written `bytes` so far.
  void end_turn(uint64_t bytes) {
    sync_open_files(folder);
    upcycle_s += wall_s() - start_s;
    disk_s += bytes == probed_bytes ? 0 : probe.append(bytes - probed_bytes);
    probed_bytes = bytes;
    start_s = wall_s();
  }

  std::filesystem::path folder;
  DiskProbe probe;  // grows to the size of OUT: rewritten blocks can be faster than new ones
  uint64_t probed_bytes = 0;
  double start_s = wall_s(), upcycle_s = 0, disk_s = 0;
};

}  // namespace

OrderedJson bench_upcycle(const UpcycleSettings& settings) {
  model::UpcycleSettings upcycled = settings.upcycle;
  upcycled.router = route::parse_router(model::kUpcycledRouter);
  const io::Checkpoint parent(settings.dense);
  const model::UpcyclePlan plan = model::plan_upcycle(parent, upcycled);
  const uint64_t start_bytes = anonymous_bytes();
  uint64_t peak_bytes = start_bytes;
  std::vector<double> upcycle_s, disk_s;
  for (int64_t i = 0; i < settings.repeats; ++i) {
    InterleavedTimer timer(upcycled.out);
    model::upcycle(parent, plan, upcycled, {[&](uint64_t bytes) {
                     peak_bytes = std::max(peak_bytes, anonymous_bytes());
                     if (bytes - timer.probed_bytes >= InterleavedTimer::kTurnBytes) {
                       timer.end_turn(bytes);
                     }
                   }});
    timer.end_turn(plan.bytes);
    upcycle_s.push_back(timer.upcycle_s);
    disk_s.push_back(timer.disk_s);
    std::filesystem::remove_all(upcycled.out);
  }
  const Timing upcycle = make_timing(std::move(upcycle_s)), disk = make_timing(std::move(disk_s));
  const auto bytes = static_cast<double>(plan.bytes);
  return {{"tensor_bytes", plan.bytes},
          {"upcycle", to_json(upcycle)},
          {"disk", to_json(disk)},
          {"bytes_per_second", bytes / upcycle.median_s},
          {"disk_bytes_per_second", bytes / disk.median_s},
          {"disk_share", disk.median_s / upcycle.median_s},
          {"anonymous_bytes", peak_bytes - start_bytes}};
}

}  // namespace moe::bench
