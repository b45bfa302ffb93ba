#pragma once
// How a conversation becomes text. A template gives each turn's prompt (no loss) and response
// (loss); an example is then
//
//   BOS prompt response EOS [BOS] prompt response EOS ...
//
// core/io/formats.md has the table of paper, alpaca, llama2 and the user's own text.
//
// Chat forms write a conversation as a whole, as published chat templates do. No template language
// is run; tests/interop/chat_templates.py compares each with transformers.
//
//   llama3   BOS <|start_header_id|>role<|end_header_id|>\n\nU<|eot_id|>, texts stripped
//   chatml   <|im_start|>role\nU<|im_end|>\n
//   zephyr   <|user|>\nU EOS \n <|assistant|>\nA EOS \n
//   mistral  BOS [INST] U [/INST] A EOS, of which Mistral published five spacings:
//            mistral-v0      "[INST] U [/INST]A"      7B-Instruct-v0.1 as first published
//            mistral         " [INST] U [/INST] A"    v1: 7B-Instruct-v0.1 and v0.2 today
//            mistral-v3      "[INST] U[/INST] A"      7B-Instruct-v0.3; answers stripped
//            mistral-tekken  "[INST]U[/INST]A"        Nemo
//            mistral-v7      the same, after [SYSTEM_PROMPT]S[/SYSTEM_PROMPT]
//            A system text precedes the first question, in v3 and tekken the last one, with a
//            blank line between.
//
// A conversation without a system text is written without one. A mark such as <|im_start|> is a
// special token if the vocabulary has one; marks in the texts themselves are plain text
// (chat_tokens()).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/data/formats.h"
#include "core/data/text_codec.h"

namespace moe::data {

// Returns the whole conversation. Answers and the ends of their turns are learned, with `only_last`
// those of the last turn. `form` is one of the names above.
std::vector<ChatPiece> chat_pieces(const std::string& form, const Conversation& conversation,
                                   bool only_last);

// Returns `word` of --template; if it is "auto", the chat form of a model folder, by the marks in
// its chat template: chat_template.jinja, or "chat_template" of tokenizer_config.json (a text, or a
// list of {"name", "template"} of which "default" counts). Text that the template itself adds (a
// date, a default system text) is not reproduced. Throws UserError if the folder has no chat
// template or one of another form.
std::string named_template(const std::string& word, const std::filesystem::path& folder);

struct TurnText {
  bool begins_with_bos = false;
  FilledText prompt;  // without the space before the response, if the template has one
  bool space_before_response = false;
  FilledText response;
};

class Template {
 public:
  Template() = default;  // paper
  // Parses a name or a text. Throws UserError for an unknown name, an unknown escape, and a
  // placeholder that is missing, unknown, repeated or out of order.
  static Template parse(const std::string& word);

  // Returns a text that differs for templates that render differently; part of the key of a token
  // cache.
  std::string words() const;

  bool is_chat() const { return kind_ == Kind::kChat; }
  const std::string& chat_form() const { return form_; }  // its name

  // Returns a turn of a template that is no chat form.
  TurnText render(const Conversation& conversation, size_t turn) const;

 private:
  enum class Kind { kPaper, kAlpaca, kLlama2, kOwn, kChat };
  Kind kind_ = Kind::kPaper;
  std::string form_;                      // of a chat
  std::string before_, between_, after_;  // of the user's own: around {instruction} and {response}
};

// The prompt of a single question, and the tokens that end its answer.
struct Question {
  std::vector<int64_t> ids, end;
};
Question question_tokens(const Template& form, const std::string& question, const TextCodec& codec);

}  // namespace moe::data
