#include "core/eval/asked.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/encoded_tasks.h"

namespace moe::eval {
namespace {

// Tokens hold four bytes of English on average. A text of fewer than this many bytes a token of the
// limit may be too little to fill a forward; then it is encoded, which is soon done.
constexpr int64_t kBytesPerToken = 8;
constexpr size_t kLongest = 16;  // texts by bytes; the one of most tokens is among them

int64_t bytes_of(const LoadedTask& loaded) {
  size_t bytes = 0;
  for (const auto& question : loaded.questions) {
    bytes += question.choices.empty() ? question.context.size() : 0;
    for (size_t choice = 0; choice < question.choices.size(); ++choice) {
      bytes += question.context_of(choice).size() + question.continuation_of(choice).size();
    }
  }
  return static_cast<int64_t>(bytes);
}

size_t longest_text(const Question& question) {
  size_t bytes = question.context.size();
  for (size_t choice = 0; choice < question.choices.size(); ++choice) {
    bytes = std::max(bytes,
                     question.context_of(choice).size() + question.continuation_of(choice).size());
  }
  return bytes;
}

// The task with its longest questions alone.
LoadedTask longest_of(const LoadedTask& loaded) {
  std::vector<const Question*> order;
  for (const auto& question : loaded.questions) {
    order.push_back(&question);
  }
  const auto end = order.begin() + static_cast<int64_t>(std::min(kLongest, order.size()));
  std::partial_sort(order.begin(), end, order.end(), [](const Question* a, const Question* b) {
    return longest_text(*a) > longest_text(*b);
  });
  LoadedTask few;
  few.task = loaded.task;
  std::for_each(order.begin(), end,
                [&](const Question* question) { few.questions.push_back(*question); });
  return few;
}

}  // namespace

Asked asked_of(const EvalSettings& settings, const OpenedModel& opened,
               const std::vector<Request>& requests) {
  return {largest_forward(opened.config, mapped_bytes(settings, opened), requests,
                          score_settings(settings, opened))};
}

Asked asked_of(const EvalSettings& settings, const OpenedModel& opened,
               const std::vector<LoadedTask>& tasks) {
  const TextEncoder encoder = encoder_of(opened, settings.compat);
  const int64_t limit = forward_limit(opened.config, mapped_bytes(settings, opened),
                                      score_settings(settings, opened));
  Asked asked;
  for (const auto& loaded : tasks) {
    const bool is_small = bytes_of(loaded) < kBytesPerToken * limit;
    try {
      const EncodedTask encoded = encode_task(encoder, is_small ? loaded : longest_of(loaded));
      if (!encoded.requests.empty()) {
        const int64_t tokens = asked_of(settings, opened, encoded.requests).forward_tokens;
        asked.forward_tokens =
            std::max({asked.forward_tokens, tokens, is_small ? int64_t{0} : limit});
      }
      for (const auto& prompt : encoded.prompts) {
        asked.prompt_tokens = std::max(asked.prompt_tokens, std::ssize(prompt));
        asked.answer_tokens = std::max(asked.answer_tokens, loaded.task.generation.max_tokens);
      }
    } catch (const UserError&) {  // is told where the task is encoded for its run
      asked.forward_tokens = std::max(asked.forward_tokens, limit);
    }
  }
  return asked;
}

}  // namespace moe::eval
