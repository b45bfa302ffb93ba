#pragma once
// Benchmarks for a model in memory, during training: read and tokenised once, scored as often as
// wanted, by the rules of `moe eval`.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/tasks/tasks.h"
#include "core/model/llama/llama.h"

namespace moe::eval {

class LiveTasks {
 public:
  // `folder` has the tokenizer and the config of the models to come. UserError: what load_tasks
  // says, a folder without tokenizer, nothing to score, a generate_until task.
  LiveTasks(const std::filesystem::path& folder, const std::vector<std::string>& names,
            const std::filesystem::path& data, std::optional<int64_t> limit);

  // Task -> metric -> mean. `routing` is used as it is; with a capacity, requests share
  // groups as in scoring/score.h.
  std::map<std::string, std::map<std::string, Mean>> run(
      const model::Llama& llama, const model::RoutingOptions& routing) const;

 private:
  std::vector<LoadedTask> tasks_;
  std::vector<std::vector<Request>> requests_;  // one a task
};

}  // namespace moe::eval
