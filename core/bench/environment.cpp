#include "core/bench/environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/chrono.h>
#include <sys/resource.h>
#include <torch/version.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "core/base/version.h"
#include "core/bench/clock.h"

namespace moe::bench {

namespace {

// What follows "KEY...:" in a file of lines; empty where there is none.
std::string field_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) == 0 && colon != std::string::npos) {
      const size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

}  // namespace

OrderedJson environment(const std::string& what) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"bench", what},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", now)},
          {"moe_version", kVersion},
          {"torch_version", TORCH_VERSION},
          {"processor", field_of("/proc/cpuinfo", "model name")},
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
  return {seconds(use.ru_utime) + seconds(use.ru_stime),
          use.ru_minflt,
          static_cast<uint64_t>(use.ru_maxrss) * 1024};
}

uint64_t anonymous_bytes() {
  const std::string kib = field_of("/proc/self/status", "RssAnon");
  return kib.empty() ? 0 : std::stoull(kib) * 1024;
}

}  // namespace moe::bench
