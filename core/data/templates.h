#pragma once
// How a conversation becomes text. A template gives each turn's prompt (no loss) and response
// (loss); an example is then
//
//   BOS prompt response EOS [BOS] prompt response EOS ...
//
//   paper    the papers' plain [instruct][response] (core/train/README.md): system, instruction and
//            input on lines of their own, then the response. The prompt of a pair stands as it is.
//   alpaca   Stanford's two prompts, with and without an input. A system text takes the place of
//            the opening sentences; later turns have none.
//   llama2   LLaMA-2 chat as Meta's code has it: `[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A `, a
//            BOS before every turn, texts stripped; the space after the answer is part of it.
//   llama3, chatml, zephyr, mistral and its kin: chat forms, which write a conversation as a whole
//            (chat_forms.h) and not turn by turn as above
//   a text   the user's own, with {instruction} and {response}, once each and in this order; \n,
//   \t,
//            \\, \{ and \} are escapes. It is applied to every turn; system and input stand in
//            {instruction} as in `paper`. What follows {response} is learned with it.

#include <string>

#include "core/data/filled_text.h"
#include "core/data/formats.h"

namespace moe::data {

struct TurnText {
  bool begins_with_bos = false;
  FilledText prompt;  // without the space before the response, where the template has one
  bool space_before_response = false;
  FilledText response;
};

class Template {
 public:
  Template() = default;  // paper
  // A name or a text. UserError: neither, a placeholder that is missing, unknown, twice or out of
  // order, an unknown escape.
  static Template parse(const std::string& word);

  // Two templates with the same words render alike; says what a cache of tokens was made with.
  std::string words() const;

  bool is_chat() const { return kind_ == Kind::kChat; }
  const std::string& chat_form() const { return form_; }  // its name

  // A turn of any other.
  TurnText render(const Conversation& conversation, size_t turn) const;

 private:
  enum class Kind { kPaper, kAlpaca, kLlama2, kOwn, kChat };
  Kind kind_ = Kind::kPaper;
  std::string form_;                      // of a chat
  std::string before_, between_, after_;  // of the user's own: around {instruction} and {response}
};

}  // namespace moe::data
