// The model that was loaded before is dropped before the next is: there is one at a time, as in any
// process that loads one, so that memory beyond its weights is a copy on the way.

#include "core/bench/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/bench/environment.h"
#include "core/model/llama/llama.h"
#include "core/train/loop/trainable.h"

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

uint64_t bytes_of(const model::Llama& model) {
  uint64_t sum = 0;
  for (const auto& parameter : train::trainable(model, {})) {
    sum += parameter.tensor.nbytes();
  }
  return sum;
}

}  // namespace

LoadReport bench_load(const std::filesystem::path& folder, int64_t repeats) {
  LoadReport report;
  const auto load = [&] {
    const double start = clock_now_s();
    const model::Llama model = model::Llama::load(io::Checkpoint(folder));
    const double seconds = clock_now_s() - start;
    report.bytes = bytes_of(model);
    return seconds;
  };
  MemoryWatch watch;
  report.first_s = load();
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    seconds.push_back(load());
  }
  report.anonymous = watch.most_above_start();
  report.load = timing_of(std::move(seconds));
  return report;
}

OrderedJson to_json(const LoadReport& report) {
  return {{"weight_bytes", report.bytes},
          {"first_ms", report.first_s * 1e3},
          {"load", to_json(report.load)},
          {"bytes_per_second", static_cast<double>(report.bytes) / report.load.median_s},
          {"anonymous_bytes", report.anonymous}};
}

}  // namespace moe::bench
