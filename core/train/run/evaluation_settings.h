#pragma once
// Evaluation while a run trains: what is evaluated and when. It changes nothing of the training.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe::train {

struct EvaluationSettings {
  std::vector<std::filesystem::path> data;  // held-out files, read as the run reads its data
  std::optional<int64_t> rows;              // of them, the first ones; open: 64; 0 = all
  std::optional<int64_t> every;             // steps; open: a tenth of the run
  std::vector<std::string> tasks;           // benchmarks by name or file, as moe eval knows them
  std::filesystem::path tasks_folder;       // of their files
  std::optional<int64_t> tasks_limit;       // questions of each task; open: all

  bool any() const { return !data.empty() || !tasks.empty(); }
};

// UserError names the flag: numbers that cannot be, flags whose --eval-data or --eval-tasks is
// missing, a file with a weight.
void check_evaluation(const EvaluationSettings& settings);

// Closes what is open, for a run of `steps`.
EvaluationSettings resolve_evaluation(EvaluationSettings settings, int64_t steps);

// Before the first step (0), after every `every`-th and after the last.
bool is_evaluation_due(const EvaluationSettings& settings, int64_t step, int64_t steps);

}  // namespace moe::train
