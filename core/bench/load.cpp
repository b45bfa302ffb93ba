#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/memory_need.h"

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

model::Llama load_folder(const std::filesystem::path& folder, model::Storage storage) {
  return model::Llama::load(io::Checkpoint(folder), {}, at::kCPU, storage);
}

// Loads the folder 1 + `repeats` times, one model at a time.
// `weight_bytes`: of the loaded weights, or of the mapped files.
OrderedJson time_loading(const LoadSettings& settings, model::Storage storage,
                         uint64_t weight_bytes) {
  MemoryWatch watch;
  std::vector<double> seconds;
  for (int64_t i = 0; i <= settings.repeats; ++i) {
    const double start = clock_s();
    const model::Llama model = load_folder(settings.model, storage);
    seconds.push_back(clock_s() - start);
  }
  const uint64_t anonymous = watch.peak_increase();
  const double first_s = seconds.front();
  seconds.erase(seconds.begin());
  const Timing timing = make_timing(std::move(seconds));
  return {{"weight_bytes", weight_bytes},
          {"first_ms", first_s * 1e3},
          {"bytes_per_second", static_cast<double>(weight_bytes) / timing.median_s},
          {"anonymous_bytes", anonymous},
          {"load", to_json(timing)}};
}

// Returns the seconds of a mapped load and the logits after one token.
double first_token_s(const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  const double start = clock_s();
  const model::Llama model = load_folder(folder, model::Storage::kStored);
  const auto routing = model::generation_routing(model.default_routing());
  const model::Packed token{at::zeros({1}, at::kLong), {1}};
  model.head(model.forward(token, routing).hidden).argmax().item<int64_t>();
  return clock_s() - start;
}

}  // namespace

OrderedJson bench_load(const LoadSettings& settings) {
  const io::Checkpoint checkpoint(settings.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  check_memory({model::bytes_to_copy(config, model::Storage::kF32, at::kCPU), 1,
                fmt::format("loading {}", settings.model.string()), "a smaller model takes less"},
               settings.force_memory);
  uint64_t stored_bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    stored_bytes += static_cast<uint64_t>(tensor.bytes());
  }
  OrderedJson mapped = time_loading(settings, model::Storage::kStored, stored_bytes);
  mapped["first_token_ms"] = first_token_s(settings.model) * 1e3;
  const auto f32_bytes = static_cast<uint64_t>(4 * model::count_parameters(config).total);
  OrderedJson json = time_loading(settings, model::Storage::kF32, f32_bytes);
  json["mapped"] = mapped;
  return json;
}

}  // namespace moe::bench
