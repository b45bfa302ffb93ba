#include "core/bench/upcycle.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/disk_probe.h"
#include "core/bench/environment.h"

namespace moe::bench {

UpcycleReport bench_upcycle(const std::filesystem::path& dense, model::UpcycleSettings settings,
                            int64_t repeats) {
  UpcycleReport report;
  const io::Checkpoint parent(dense);
  const model::UpcyclePlan plan = model::plan_upcycle(parent, settings);
  report.bytes = plan.bytes;
  const uint64_t before = anonymous_bytes();
  const auto watch = [&](uint64_t) {
    report.anonymous = std::max(report.anonymous, std::max(anonymous_bytes(), before) - before);
  };
  std::vector<double> seconds, disk;
  for (int64_t i = 0; i < repeats; ++i) {
    disk.push_back(static_cast<double>(plan.bytes) / probe_disk(settings.out, plan.bytes));
    const auto start = std::chrono::steady_clock::now();
    model::upcycle(parent, plan, settings, watch);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
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
