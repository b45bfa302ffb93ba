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

// One a prompt, in order. Routing is the model's own for generation (model/generate.h).
std::vector<std::string> generate_answers(const model::Llama& llama,
                                          const model::RoutingOptions& routing,
                                          const io::Tokenizer& tokenizer,
                                          const Generation& generation,
                                          const std::vector<std::vector<int64_t>>& prompts,
                                          const std::function<void(int64_t)>& on_progress = {});

}  // namespace moe::eval
