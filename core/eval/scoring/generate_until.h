#pragma once
// generate_until requests: greedy generation up to a stop word, truncated as in
// lm-evaluation-harness.

#include <functional>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/model/llama/generate.h"

namespace moe::eval {

// Returns the last tokens of a context: as many as fit into the window together with the longest
// answer. Throws UserError if the window is not longer than the longest answer.
std::vector<int64_t> encode_prompt(const TextEncoder& encoder, const Generation& generation,
                                   const std::string& context);

// Truncates `text` at the first occurrence of each stop word in turn.
std::string truncate_at_stop_words(std::string text, const std::vector<std::string>& until);

// Detector of stop words in generated text. Decodes only the end of the text, because it is called
// after every new token.
class StopWords {
 public:
  // `tokenizer` must outlive the object. Ignores empty words.
  StopWords(const io::Tokenizer& tokenizer, const std::vector<std::string>& words);
  // Returns true if the text of `ids` contains a stop word. Requires that the text without the last
  // token contains none.
  bool appears_in(const std::vector<int64_t>& ids) const;

 private:
  // Returns false if no stop word can end within the text of this token. Most tokens do not have
  // the last byte of a stop word, so that nothing must be decoded for them.
  bool may_end_in(int64_t id) const;

  const io::Tokenizer& tokenizer_;
  std::vector<std::string> words_;
  std::string last_bytes_;  // the last byte of each word
  size_t max_word_bytes_ = 0;
};

// Generates an answer to prompts[i] for each i in `indices`, with model::generation_routing().
// Calls `done` when an answer is complete, in any order.
using OnAnswer = std::function<void(size_t prompt, std::string answer)>;
void generate_answers(const model::Llama& llama, const model::RoutingOptions& routing,
                      const io::Tokenizer& tokenizer, const Generation& generation,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const std::vector<size_t>& indices, const OnAnswer& done);

}  // namespace moe::eval
