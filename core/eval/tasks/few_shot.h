#pragma once
// Examples before a question: which ones, and how they read (the harness's samplers.py, task.py).

#include <optional>

#include "core/eval/metrics/python_random.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

inline constexpr uint32_t kShotSeed = 1234;  // the harness's fewshot_random_seed

// Draws for one question after the other, in file order: the draws depend on it.
class ShotSampler {
 public:
  // `pool` must outlive the sampler. UserError when it holds too few.
  ShotSampler(const Task& task, const std::vector<Document>& pool, int64_t count);

  // Description and examples: what stands before the prompt of `document`.
  std::string before(const OrderedJson& document);

 private:
  std::vector<size_t> draw(const OrderedJson& document);

  const Task& task_;
  const std::vector<Document>& pool_;
  int64_t count_;
  PythonRandom random_;
};

// An example with its answer, without the delimiter after it.
std::string shot_text(const Task& task, const Document& document);

}  // namespace moe::eval
