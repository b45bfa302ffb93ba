#pragma once
// generate_until: greedy text up to a stop word, as lm-evaluation-harness cuts it.

#include <functional>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/model/llama/generate.h"

namespace moe::eval {

// The context's tokens, cut from the left so that the answer fits into the window. UserError: the
// window is not longer than the longest answer.
std::vector<int64_t> encode_prompt(const TextEncoder& encoder, const Generation& generation,
                                   const std::string& context);

// `text` up to the first of the stop words; each is looked for in what the one before left.
std::string cut_at(std::string text, const std::vector<std::string>& until);

// Whether generated text holds one of some words. RequestSizes after every new token, so it does
// not look at all of the text again each time.
class StopWords {
 public:
  // The tokenizer must outlive it. An empty word is none.
  StopWords(const io::Tokenizer& tokenizer, const std::vector<std::string>& words);
  // Whether there is one now, where there was none before the last token.
  bool end_with_one(const std::vector<int64_t>& ids) const;

 private:
  bool are_in(const std::string& text) const;
  // Whether a word may end within the text of this token: most have no word's last byte, and ask
  // for no decoding.
  bool may_end_in(int64_t id) const;

  const io::Tokenizer& tokenizer_;
  std::vector<std::string> words_;
  std::string last_bytes_;  // of each word
  size_t longest_ = 0;
};

// Answers prompts `wanted` of `prompts`; `done` gets each answer when it ends, in whatever order
// they do. Routing is the model's own for generation (model/generate.h).
using OnAnswer = std::function<void(size_t prompt, std::string answer)>;
void generate_answers(const model::Llama& llama, const model::RoutingOptions& routing,
                      const io::Tokenizer& tokenizer, const Generation& generation,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const std::vector<size_t>& wanted, const OnAnswer& done);

}  // namespace moe::eval
