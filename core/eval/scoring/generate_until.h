#pragma once
// generate_until requests: greedy text up to a stop word, cut as lm-evaluation-harness does.

#include <functional>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/model/llama/generate.h"

namespace moe::eval {

// Returns the tokens of a context, cut from the left so that the answer fits into the window.
// Throws UserError if the window is not longer than the longest answer.
std::vector<int64_t> encode_prompt(const TextEncoder& encoder, const Generation& generation,
                                   const std::string& context);

// Cuts `text` at each of the stop words in turn.
std::string cut_at(std::string text, const std::vector<std::string>& until);

// Detects stop words in generated text. It is called after every new token, so it decodes only the
// end of the text.
class StopWords {
 public:
  // The tokenizer must outlive the object. Ignores empty words.
  StopWords(const io::Tokenizer& tokenizer, const std::vector<std::string>& words);
  // Returns true if the text of `ids` has a stop word. The text without the last token must have
  // none.
  bool end_with_one(const std::vector<int64_t>& ids) const;

 private:
  // Returns false if no word can end within the text of this token: most tokens have no word's last
  // byte and need no decoding.
  bool may_end_in(int64_t id) const;

  const io::Tokenizer& tokenizer_;
  std::vector<std::string> words_;
  std::string last_bytes_;  // of each word
  size_t max_word_bytes_ = 0;
};

// Generates answers to prompts[i] for each i of `indices`, with model::generation_routing().
// Calls `done` for each answer when it is complete, in any order.
using OnAnswer = std::function<void(size_t prompt, std::string answer)>;
void generate_answers(const model::Llama& llama, const model::RoutingOptions& routing,
                      const io::Tokenizer& tokenizer, const Generation& generation,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const std::vector<size_t>& indices, const OnAnswer& done);

}  // namespace moe::eval
