// The model that was loaded before is dropped before the next is: there is one at a time, as in any
// process that loads one, so that memory beyond its weights is a copy on the way.

#include "core/bench/load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/available_memory.h"
#include "core/bench/environment.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/memory_need.h"

namespace moe::bench {

namespace {

// Looks at the process's anonymous memory until it is asked for the most.
class MemoryWatch {
 public:
  MemoryWatch()
      : before_(anonymous_bytes()), thread_([this] {
          while (!done_) {
            most_ = std::max(most_, anonymous_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  ~MemoryWatch() { stop(); }

  uint64_t most_above_start() {
    stop();
    return std::max({most_, anonymous_bytes(), before_}) - before_;
  }

 private:
  void stop() {
    done_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  uint64_t before_, most_ = 0;
  std::atomic<bool> done_ = false;
  std::thread thread_;  // last: starts when the others are there
};

uint64_t stored_bytes(const io::Checkpoint& checkpoint) {
  uint64_t sum = 0;
  for (const auto& info : checkpoint.tensors()) {
    sum += static_cast<uint64_t>(info.bytes());
  }
  return sum;
}

uint64_t bytes_in_f32(const model::Llama& model) {
  uint64_t sum = 0;
  for (const auto& parameter : model.parameters()) {
    sum += parameter.tensor.nbytes();
  }
  return sum;
}

model::Llama load(const std::filesystem::path& folder, model::Storage storage) {
  return model::Llama::load(io::Checkpoint(folder), {}, at::kCPU, storage);
}

Loading measure(const std::filesystem::path& folder, int64_t repeats, model::Storage storage) {
  Loading loading;
  const auto timed = [&] {
    const double start = clock_now_s();
    const model::Llama model = load(folder, storage);
    const double seconds = clock_now_s() - start;
    loading.bytes = storage == model::Storage::kF32 ? bytes_in_f32(model)
                                                    : stored_bytes(io::Checkpoint(folder));
    return seconds;
  };
  MemoryWatch watch;
  loading.first_s = timed();
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    seconds.push_back(timed());
  }
  loading.anonymous = watch.most_above_start();
  loading.load = timing_of(std::move(seconds));
  return loading;
}

double seconds_to_first_token(const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  const double start = clock_now_s();
  const model::Llama model = load(folder, model::Storage::kStored);
  const auto routing = model::generation_routing(model.default_routing());
  const model::Packed token{at::zeros({1}, at::kLong), {1}};
  model.head(model.forward(token, routing).hidden).argmax().item<int64_t>();
  return clock_now_s() - start;
}

OrderedJson to_json(const Loading& loading) {
  return {{"weight_bytes", loading.bytes},
          {"first_ms", loading.first_s * 1e3},
          {"load", to_json(loading.load)},
          {"bytes_per_second", static_cast<double>(loading.bytes) / loading.load.median_s},
          {"anonymous_bytes", loading.anonymous}};
}

}  // namespace

LoadReport bench_load(const std::filesystem::path& folder, int64_t repeats, bool force_memory) {
  LoadReport report;
  const io::Checkpoint checkpoint(folder);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  check_memory({model::bytes_to_copy(config, model::Storage::kF32, at::kCPU), 1,
                fmt::format("loading {}", folder.string()), "a smaller model takes less"},
               force_memory);
  report.mapped = measure(folder, repeats, model::Storage::kStored);
  report.first_token_s = seconds_to_first_token(folder);
  report.f32 = measure(folder, repeats, model::Storage::kF32);
  return report;
}

OrderedJson to_json(const LoadReport& report) {
  OrderedJson json = to_json(report.f32);
  json["mapped"] = to_json(report.mapped);
  json["mapped"]["first_token_ms"] = report.first_token_s * 1e3;
  return json;
}

}  // namespace moe::bench
