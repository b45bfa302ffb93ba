#pragma once
// Training runs of a dozen steps with a tiny model, dense or upcycled, and rows that it can learn.

#include <cmath>
#include <sstream>

#include "core/base/error.h"
#include "core/train/loop/plan.h"
#include "tests/support/catch.h"
#include "tests/support/mixture.h"
#include "tests/support/training_rows.h"

namespace moe::test {

// Writes 24 rows that repeat a short pattern, which a model can learn in a few steps.
inline void write_rows(const fs::path& file) {
  std::string text;
  for (int row = 0; row < 24; ++row) {
    std::vector<int> ids;
    for (int t = 0; t < 8 + row % 5; ++t) {
      ids.push_back(3 + (row % 4) * 5 + t % 5);
    }
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(file, text);
}

// A tiny dense folder, its mixture if `router` is not empty, and rows to train on.
struct TrainWorld {
  TempDir dir;
  train::TrainSettings settings;

  explicit TrainWorld(const std::string& router = "", const TinyCheckpoint& shape = {}) {
    write_tiny_checkpoint(dir / "dense", shape);
    write_rows(dir / "rows.jsonl");
    settings.model = dir / "dense";
    if (!router.empty()) {
      settings.model = dir / "moe";
      write_mixture(dir / "dense", settings.model, {.router = router, .experts = 4, .ep_ranks = 2});
    }
    settings.run = dir / "run";
    settings.data = {dir / "rows.jsonl"};
    settings.steps = 12;
    settings.micro_batch = 4;
    settings.lr = 1e-2;
  }

  std::vector<train::StepRecord> train() {
    std::vector<train::StepRecord> records;
    train::TrainCallbacks callbacks;
    callbacks.on_step = [&](const train::StepRecord& record) { records.push_back(record); };
    train::train(settings, callbacks);
    return records;
  }

  // Trains in the run folder `dir`/`run`.
  std::vector<train::StepRecord> train(const std::string& run) {
    settings.run = dir / run;
    return train();
  }
};

inline std::vector<double> losses(const std::vector<train::StepRecord>& records) {
  std::vector<double> values;
  for (const auto& record : records) {
    values.push_back(record.loss);
  }
  return values;
}

inline double relative_error(double a, double b) { return std::abs(a - b) / (std::abs(b) + 1e-12); }

inline std::string final_weights(const fs::path& run) {
  return read_file(run / "final/model.safetensors");
}

// Returns metrics.jsonl without times and rates.
inline std::string steady_metrics(const fs::path& run) {
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  std::string steady;
  for (std::string line; std::getline(lines, line);) {
    OrderedJson json = OrderedJson::parse(line);
    for (const char* key : {"seconds", "tokens_per_second", "peak_memory_bytes",
                            "data_wait_seconds", "evaluation_seconds"}) {
      json.erase(key);
    }
    steady += json.dump() + "\n";
  }
  return steady;
}

// Trains and requests a stop after step `stop`.
inline void train_until(TrainWorld& world, int64_t stop) {
  train::TrainCallbacks callbacks;
  int64_t done = 0;
  callbacks.on_step = [&](const train::StepRecord& record) { done = record.step; };
  callbacks.stop_requested = [&] { return done == stop; };
  CHECK_THROWS_AS(train::train(world.settings, callbacks), Interrupted);
}

// Trains in the run folder "stopped", with a stop after each step of `stops`. The final weights
// must equal those of the run `whole`.
inline void check_resumes(TrainWorld& world, fs::path whole, const std::vector<int64_t>& stops) {
  REQUIRE(whole != world.dir / "stopped");
  world.settings.run = world.dir / "stopped";
  for (const int64_t stop : stops) {
    train_until(world, stop);
  }
  world.train();
  CHECK(final_weights(world.settings.run) == final_weights(whole));
}

}  // namespace moe::test
