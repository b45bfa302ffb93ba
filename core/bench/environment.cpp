#include "core/bench/environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/chrono.h>
#include <sys/resource.h>
#include <torch/version.h>

#include <chrono>
#include <string>
#include <thread>

#include "core/base/system_fields.h"
#include "core/base/version.h"
#include "core/bench/timing.h"

namespace moe::bench {

OrderedJson environment(const std::string& what) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"bench", what},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", now)},
          {"moe_version", kVersion},
          {"torch_version", TORCH_VERSION},
          {"processor", system_field("/proc/cpuinfo", "model name")},
          {"processors", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"clock", times_cpu() ? "cpu" : "wall"},
          {"instruction_set", at::get_cpu_capability()}};
}

ProcessUse process_use() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {seconds(use.ru_utime) + seconds(use.ru_stime), use.ru_minflt,
          static_cast<uint64_t>(use.ru_maxrss) * 1024};
}

uint64_t anonymous_bytes() { return system_bytes("/proc/self/status", "RssAnon"); }

}  // namespace moe::bench
