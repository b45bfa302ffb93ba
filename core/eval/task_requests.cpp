#include "core/eval/task_requests.h"

#include <fmt/format.h>

namespace moe::eval {

std::vector<TextPair> text_pairs(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      pairs.push_back({question.context_of(i), question.continuation_of(i),
                       fmt::format("{}, choice {}", question.where, i + 1), question.source});
    }
  }
  return pairs;
}

}  // namespace moe::eval
