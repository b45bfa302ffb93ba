#include "core/eval/scoring/generate_until.h"

#include <algorithm>

#include "core/base/error.h"

namespace moe::eval {

std::vector<int64_t> encode_prompt(const TextEncoder& encoder, const Generation& generation,
                                   const std::string& context) {
  const int64_t room = encoder.window - generation.max_tokens;
  if (room < 1) {
    throw UserError(
        "the model's window of {} tokens leaves no room for a question beside an "
        "answer of {}; choose a task whose answers are not generated",
        encoder.window, generation.max_tokens);
  }
  std::vector<int64_t> tokens = encode_text(encoder, context);
  if (tokens.empty()) {
    tokens.push_back(encoder.prefix_id);
  }
  if (static_cast<int64_t>(tokens.size()) > room) {
    tokens.erase(tokens.begin(), tokens.end() - room);
  }
  return tokens;
}

std::string cut_at(std::string text, const std::vector<std::string>& until) {
  for (const auto& word : until) {
    if (!word.empty()) {
      text = text.substr(0, text.find(word));
    }
  }
  return text;
}

std::vector<std::string> generate_answers(const model::Llama& llama,
                                          const model::RoutingOptions& routing,
                                          const io::Tokenizer& tokenizer,
                                          const Generation& generation,
                                          const std::vector<std::vector<int64_t>>& prompts,
                                          const std::function<void(int64_t)>& on_progress) {
  const auto has_stop_word = [&](const std::vector<int64_t>& ids) {
    const std::string text = tokenizer.decode(ids);
    return std::any_of(generation.until.begin(), generation.until.end(), [&](const auto& word) {
      return !word.empty() && text.find(word) != std::string::npos;
    });
  };
  model::GenerateSettings settings;
  settings.max_tokens = generation.max_tokens;
  settings.eos_ids = tokenizer.stop_ids();
  settings.stops = has_stop_word;
  std::vector<std::string> answers;
  for (const auto& prompt : prompts) {
    std::vector<int64_t> ids =
        model::generate(llama, model::generation_routing(routing), prompt, settings);
    const auto& ends = settings.eos_ids;
    if (!ids.empty() && std::find(ends.begin(), ends.end(), ids.back()) != ends.end()) {
      ids.pop_back();
    }
    answers.push_back(cut_at(tokenizer.decode(ids), generation.until));
    if (on_progress) {
      on_progress(static_cast<int64_t>(answers.size()));
    }
  }
  return answers;
}

}  // namespace moe::eval
