#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/memory_need.h"
#include "core/upcycle/upcycle.h"

namespace moe::bench {
namespace {

// Polls the anonymous memory of the process in a thread.
struct MemoryWatch {
  // Returns the largest increase since construction.
  uint64_t peak_increase() const {
    return std::max({peak.load(), anonymous_bytes(), start}) - start;
  }

  const uint64_t start = anonymous_bytes();
  std::atomic<uint64_t> peak = 0;
  std::jthread thread{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      peak = std::max<uint64_t>(peak, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }};
};

// Loads the folder 1 + `repeats` times, one model at a time. `weight_bytes`: size of the loaded
// weights, or of the mapped files.
OrderedJson time_loading(const LoadSettings& settings, model::Storage storage,
                         uint64_t weight_bytes) {
  MemoryWatch watch;
  std::vector<double> seconds;
  for (int64_t i = 0; i <= settings.repeats; ++i) {
    const double start = clock_s();
    const auto model = model::Llama::load(io::Checkpoint(settings.model), {}, at::kCPU, storage);
    seconds.push_back(clock_s() - start);
  }
  const uint64_t anonymous = watch.peak_increase();
  const double first_s = seconds.front();
  seconds.erase(seconds.begin());
  const Timing timing = make_timing(std::move(seconds));
  return {{"weight_bytes", weight_bytes},
          {"first_ms", first_s * 1e3},
          {"bytes_per_second", weight_bytes / timing.median_s},
          {"anonymous_bytes", anonymous},
          {"load", to_json(timing)}};
}

double first_token_s(const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  const double start = clock_s();
  const auto model =
      model::Llama::load(io::Checkpoint(folder), {}, at::kCPU, model::Storage::kStored);
  const auto routing = model::generation_routing(model.default_routing());
  const model::Packed token{at::zeros({1}, at::kLong), {1}};
  model.head(model.forward(token, routing).hidden).argmax().item<int64_t>();
  return clock_s() - start;
}

void sync_open_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && target.string().starts_with(folder.string() + "/")) {
      ::fdatasync(std::stoi(entry.path().filename().string()));
    }
  }
}

// Clock of upcycling that stops after each gigabyte to time plain writes of as many bytes.
struct InterleavedTimer {
  static constexpr uint64_t kTurnBytes = 1'000'000'000;

  explicit InterleavedTimer(const std::filesystem::path& out)
      : folder(std::filesystem::weakly_canonical(std::filesystem::absolute(out)).parent_path()),
        probe(folder) {}

  // Ends the turn of upcycling, which has written `bytes` so far.
  void end_turn(uint64_t bytes) {
    sync_open_files(folder);
    upcycle_s += wall_s() - start_s;
    disk_s += bytes == probed_bytes ? 0 : probe.append(bytes - probed_bytes);
    probed_bytes = bytes;
    start_s = wall_s();
  }

  std::filesystem::path folder;
  DiskProbe probe;  // grows with the output, because rewriting blocks can be faster
  uint64_t probed_bytes = 0;
  double start_s = wall_s(), upcycle_s = 0, disk_s = 0;
};

}  // namespace

OrderedJson bench_load(const LoadSettings& settings) {
  const io::Checkpoint checkpoint(settings.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  check_memory({model::bytes_to_copy(config, model::Storage::kF32, at::kCPU), 1,
                fmt::format("loading {}", settings.model.string()), "a smaller model takes less"},
               settings.force_memory);
  uint64_t stored_bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    stored_bytes += tensor.bytes();
  }
  OrderedJson mapped = time_loading(settings, model::Storage::kStored, stored_bytes);
  mapped["first_token_ms"] = first_token_s(settings.model) * 1e3;
  OrderedJson json =
      time_loading(settings, model::Storage::kF32, 4 * model::count_parameters(config).total);
  json["mapped"] = mapped;
  return json;
}

OrderedJson bench_upcycle(const UpcycleSettings& settings) {
  model::UpcycleSettings upcycled = settings.upcycle;
  upcycled.router = route::parse_router(model::kUpcycledRouter);
  const io::Checkpoint parent(settings.dense);
  const model::UpcyclePlan plan = model::plan_upcycle(parent, upcycled);
  MemoryWatch watch;
  std::vector<double> upcycle_s, disk_s;
  for (int64_t i = 0; i < settings.repeats; ++i) {
    InterleavedTimer timer(upcycled.out);
    model::upcycle(parent, plan, upcycled, {[&](uint64_t bytes) {
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
  return {{"tensor_bytes", plan.bytes},
          {"upcycle", to_json(upcycle)},
          {"disk", to_json(disk)},
          {"bytes_per_second", plan.bytes / upcycle.median_s},
          {"disk_bytes_per_second", plan.bytes / disk.median_s},
          {"disk_share", disk.median_s / upcycle.median_s},
          {"anonymous_bytes", watch.peak_increase()}};
}

}  // namespace moe::bench
