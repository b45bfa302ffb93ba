#pragma once
// How a conversation becomes text. A template gives each turn's prompt (no loss) and response
// (loss); an example is then
//
//   BOS prompt response EOS [BOS] prompt response EOS ...
//
// core/io/formats.md has the table of paper, alpaca, llama2 (forms/NAME.jinja) and the user's own
// text. They are rendered (core/jinja) with the names bos_token, system (of the first turn),
// instruction, input, question (instruction and input), response, first and verbatim.
//
// A chat template writes a conversation as a whole (chat_template.h).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/data/chat_template.h"
#include "core/data/formats.h"
#include "core/data/text_codec.h"

namespace moe::data {

struct TurnTokens {
  std::vector<int64_t> prompt, response;  // with BOS, without EOS
  bool had_bos = false;                   // the text has one, so none was added
};

class Template {
 public:
  Template();  // paper
  // Parses the value of --template: a name, "auto" (the chat template of `folder`, or paper if it
  // has none), a file that ends in .jinja, or a text with {instruction} and {response}. Throws
  // UserError for an unknown name, an unknown escape, a placeholder that is missing, unknown,
  // repeated or out of order, and a chat template that is broken.
  static Template parse(const std::string& word, const std::filesystem::path& folder = {},
                        const ChatOptions& options = {});

  // Returns a text that differs for templates that render differently; part of the key of a token
  // cache.
  std::string words() const;
  // Returns "paper" or "the chat template MODEL/chat_template.jinja", for messages.
  std::string description() const;

  const std::optional<ChatTemplate>& chat() const { return chat_; }
  // Throws UserError if the folder's chat template, chosen by "auto", is not supported: it is no
  // error for data without conversations.
  void require_usable() const;

  // Encodes a turn with a template that is no chat template. Prompt and response are encoded
  // separately. If the tokenizer puts a space before a text, that space is the one between them, of
  // the template (`[/INST] A`) or of the record ("A:" and " Paris"): it is not encoded twice.
  TurnTokens encode(const Conversation& conversation, size_t turn, const TextCodec& codec) const;

 private:
  Template(const std::string& name, std::string_view source) : name_(name), turn_(source, name) {}

  std::string name_;      // for messages
  jinja::Template turn_;  // of a turn: what is in {% generation %} is the response
  std::optional<ChatTemplate> chat_;
  std::string refusal_;  // of the folder's chat template
};

// The prompt of a single question, and the tokens that end its answer.
struct Question {
  std::vector<int64_t> ids, end;
};
Question question_tokens(const Template& form, const std::string& question, const TextCodec& codec);

}  // namespace moe::data
