#pragma once
// Training runs whose ranks are threads of the test process.

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/train_world.h"

namespace moe::test {

struct RankRun {
  std::optional<int64_t> stop = {};  // step after which the last rank alone requests a stop
  at::Device device = at::kCPU;
  int max_seconds = 120;  // the process exits after this time
};

// Trains on `ranks` threads. Returns the step records of rank 0. Throws Interrupted if the run
// stopped.
inline std::vector<train::StepRecord> train_on_ranks(const train::TrainSettings& settings,
                                                     int64_t ranks, const RankRun& run = {}) {
  const TimeLimit limit(run.max_seconds);
  std::vector<train::StepRecord> records;
  run_as_threads(
      ranks,
      [&](distributed::Comm& comm) {
        int64_t done = 0;
        train::TrainCallbacks callbacks;
        callbacks.on_step = [&](const train::StepRecord& record) {
          done = record.step;
          if (comm.rank() == 0) {
            records.push_back(record);
          }
        };
        callbacks.stop_requested = [&] { return comm.rank() == ranks - 1 && done == run.stop; };
        train::train(settings, callbacks, &comm);
      },
      run.device);
  return records;
}

// Returns the largest norm of the difference of two parameters of the folders, relative to the norm
// of the parameter in `b`.
inline double folder_distance(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto one = model::Llama::load(io::Checkpoint(a)).parameters();
  const auto other = model::Llama::load(io::Checkpoint(b)).parameters();
  REQUIRE(one.size() == other.size());
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const at::Tensor difference = one[i].tensor - other[i].tensor;
    largest = std::max(largest, (difference.norm() / other[i].tensor.norm()).item<double>());
  }
  return largest;
}

}  // namespace moe::test
