#pragma once
// All steps of a run as its report shows them, in bounded memory: fed the lines of metrics.jsonl
// one by one, by a run that goes on or from the file.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/observe/load_map.h"
#include "core/train/observe/thinned.h"

namespace moe::train {

class History {
 public:
  // UserError, opened by `where`: no step, or one that does not follow the one before.
  void add(const Json& line, const std::string& where);

  // By name in metrics.jsonl: "loss", "dropped_share", ..; accuracies are "tasks/piqa/acc".
  const std::map<std::string, Thinned>& curves() const { return curves_; }
  const LoadMap& loads() const { return loads_; }

  int64_t steps = 0;  // of the last line
  int64_t total_tokens = 0;
  double seconds = 0;                               // of all steps, evaluation besides
  std::vector<int64_t> skipped;                     // the first of them
  int64_t skipped_count = 0, skipped_outliers = 0;  // the former counts both kinds

 private:
  void add_number(int64_t step, const std::string& name, const Json& value);

  bool is_begun_ = false;
  std::map<std::string, Thinned> curves_;
  LoadMap loads_;
};

// UserError: the file is missing, or a line of it is none of ours. A last line that was cut short
// is left out.
History read_history(const std::filesystem::path& metrics_file);

}  // namespace moe::train
