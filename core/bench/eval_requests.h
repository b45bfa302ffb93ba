#pragma once
// What bench_eval scores: the requests of tasks, or made-up ones where no data is at hand.

#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/tasks.h"
#include "core/model/config/config.h"

namespace moe::bench {

struct RequestSet {
  std::string name;
  int64_t questions = 0;
  std::vector<eval::Request> requests;
};

// One a task. UserError for a task whose answers are written and not scored.
std::vector<RequestSet> task_sets(const std::vector<eval::LoadedTask>& tasks,
                                  const eval::TextEncoder& encoder);

// Random tokens, the same in every run. "letters": four choices of one token after 48 to 512, about
// 150 (MMLU); "spans": four of 2 to 64, about 14, after 16 to 256, about 70 (HellaSwag, PIQA). A
// smaller window or vocabulary makes them shorter.
std::vector<RequestSet> made_up_sets(const model::ModelConfig& config, int64_t questions);

}  // namespace moe::bench
