#include "core/bench/timing.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/chrono.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "core/base/resources.h"
#include "core/base/version.h"
#include "core/model/llama/timeline.h"
#include "kernels/ops/device.h"

namespace moe::bench {

namespace {

double read_clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool uses_cpu_time(c10::Device device) { return device.is_cpu() && at::get_num_threads() == 1; }

}  // namespace

double wall_s() { return read_clock_s(CLOCK_MONOTONIC); }

double clock_s(c10::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
  return uses_cpu_time(device) ? read_clock_s(CLOCK_PROCESS_CPUTIME_ID) : wall_s();
}

Timing make_timing(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

Timing time_calls(int64_t repeats, const std::function<void()>& work, c10::Device device) {
  work();
  std::vector<double> seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    const double start = clock_s(device);
    work();
    seconds.push_back(clock_s(device) - start);
  }
  return make_timing(std::move(seconds));
}

OrderedJson to_json(const Timing& timing) {
  return {{"median_ms", timing.median_s * 1e3},
          {"best_ms", timing.best_s * 1e3},
          {"worst_ms", timing.worst_s * 1e3}};
}

OrderedJson to_json(const Timing& timing, double flop, const Timing& roof) {
  OrderedJson json = to_json(timing);
  json["gflops"] = flop / timing.median_s / 1e9;
  json["share_of_roof"] = roof.median_s / timing.median_s;
  return json;
}

OrderedJson time_parts(const std::function<void()>& work, c10::Device device) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, seconds] : model::part_seconds(work, device)) {
    json[name] = seconds * 1e3;
  }
  return json;
}

OrderedJson environment(const std::string& benchmark, c10::Device device) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  OrderedJson json = {{"bench", benchmark},
                      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", now)},
                      {"moe_version", kVersion},
                      {"torch_version", TORCH_VERSION},
                      {"processor", system_field("/proc/cpuinfo", "model name")},
                      {"processors", std::thread::hardware_concurrency()},
                      {"threads", at::get_num_threads()},
                      {"clock", uses_cpu_time(device) ? "cpu" : "wall"},
                      {"instruction_set", at::get_cpu_capability()}};
  if (device.is_cuda()) {
    json["device"] = kernels::gpu_name(device.index());
  }
  return json;
}

uint64_t peak_bytes(c10::Device device) {
  return device.is_cuda() ? kernels::gpu_peak_bytes(device.index()) : peak_resident_bytes();
}

uint64_t anonymous_bytes() { return system_bytes("/proc/self/status", "RssAnon"); }

}  // namespace moe::bench
