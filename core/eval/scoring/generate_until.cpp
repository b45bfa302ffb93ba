#include "core/eval/scoring/generate_until.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/resources.h"

namespace moe::eval {

std::vector<int64_t> encode_prompt(const TextEncoder& encoder, const Generation& generation,
                                   const std::string& context) {
  const int64_t max_tokens = encoder.window - generation.max_tokens;
  USER_ERROR_IF(max_tokens < 1,
                "the model's window of {} tokens is too short for a question and an answer of up "
                "to {} tokens; choose a task without generated answers",
                encoder.window, generation.max_tokens);
  std::vector<int64_t> tokens = encode_text(encoder, context);
  if (tokens.empty()) {
    USER_ERROR_IF(encoder.prefix_id < 0, "a question is empty, and this tokenizer has no BOS");
    tokens.push_back(encoder.prefix_id);
  }
  if (static_cast<int64_t>(tokens.size()) > max_tokens) {
    tokens.erase(tokens.begin(), tokens.end() - max_tokens);
  }
  return tokens;
}

std::string truncate_at_stop_words(std::string text, const std::vector<std::string>& until) {
  for (const auto& word : until) {
    if (!word.empty()) {
      text = text.substr(0, text.find(word));
    }
  }
  return text;
}

StopWords::StopWords(const io::Tokenizer& tokenizer, const std::vector<std::string>& words)
    : tokenizer_(tokenizer) {
  for (const auto& word : words) {
    if (!word.empty()) {
      words_.push_back(word);
      max_word_bytes_ = std::max(max_word_bytes_, word.size());
      last_bytes_ += word.back();
    }
  }
}

bool StopWords::may_end_in(int64_t id) const {
  const std::string bytes = tokenizer_.bytes(id);
  const auto may_be_last = [&](char byte) {
    // Bytes that are not ASCII may be decoded as U+FFFD.
    const bool is_ascii = static_cast<unsigned char>(byte) < 0x80;
    return !is_ascii || last_bytes_.find(byte) != std::string::npos;
  };
  // A decoder may insert spaces.
  return bytes.empty() || last_bytes_.find(' ') != std::string::npos ||
         std::ranges::any_of(bytes, may_be_last);
}

bool StopWords::appears_in(const std::vector<int64_t>& ids) const {
  if (words_.empty() || ids.empty() || !may_end_in(ids.back())) {
    return false;
  }
  const auto has_word = [&](const std::string& text) {
    return std::ranges::any_of(
        words_, [&](const auto& word) { return text.find(word) != std::string::npos; });
  };
  // Decodes enough tokens for the longest word, the last token, and the space that decoding may
  // remove from the first token.
  constexpr size_t kMarginBytes = 64;
  for (size_t tokens = 16; tokens < ids.size(); tokens *= 2) {
    const std::string text =
        tokenizer_.decode({ids.end() - static_cast<int64_t>(tokens), ids.end()});
    if (text.size() >= max_word_bytes_ + kMarginBytes) {
      return has_word(text) && has_word(tokenizer_.decode(ids));
    }
  }
  return has_word(tokenizer_.decode(ids));
}

void generate_answers(const model::Llama& llama, const model::RoutingOptions& routing,
                      const io::Tokenizer& tokenizer, const Generation& generation,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const std::vector<size_t>& indices, const OnAnswer& done) {
  const StopWords words(tokenizer, generation.until);
  model::GenerateSettings settings;
  settings.max_tokens = generation.max_tokens;
  settings.eos_ids = tokenizer.stop_ids();
  settings.stops = [&](const std::vector<int64_t>& ids) { return words.appears_in(ids); };
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  const int64_t rows = model::rows_at_once(llama.config(), longest, generation.max_tokens,
                                           available_memory_bytes() / 4);
  model::generate_all(llama, model::generation_routing(routing), settings,
                      {prompts, indices, rows, [&](size_t index, std::vector<int64_t> ids) {
                         const auto& ends = settings.eos_ids;
                         if (!ids.empty() && std::ranges::find(ends, ids.back()) != ends.end()) {
                           ids.pop_back();
                         }
                         done(index,
                              truncate_at_stop_words(tokenizer.decode(ids), generation.until));
                       }});
}

}  // namespace moe::eval
