#pragma once
// Templates of --template: conversation -> text -> tokens. Those that are no chat template render
// one turn as prompt (no loss) and response (loss); an example is then
//
//   BOS prompt response EOS [BOS] prompt response EOS ...
//
// core/io/formats.md has the table of paper, alpaca, llama2 (forms/NAME.jinja) and the user's own
// text. Their variables (core/jinja) are bos_token, system (of the first turn), instruction, input,
// question (instruction and input), response, first and verbatim.
//
// A chat template renders a whole conversation (chat_template.h).

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
  bool had_bos = false;                   // the text begins with BOS, so none was added
};

class Template {
 public:
  Template();  // paper
  // Parses the value of --template: a name, "auto" (the chat template of `folder`, or paper without
  // one), a file that ends in .jinja, or a text with {instruction} and {response}. Throws UserError
  // for an unknown name or escape, a placeholder that is missing, unknown, repeated or out of
  // order, and an invalid chat template.
  static Template parse(const std::string& word, const std::filesystem::path& folder = {},
                        const ChatOptions& options = {});

  // Returns a text that differs for templates that render differently, for the key of the cache.
  std::string fingerprint() const;
  // Returns "paper" or "the chat template MODEL/chat_template.jinja", for messages.
  std::string description() const;

  const std::optional<ChatTemplate>& chat() const { return chat_; }
  // Throws UserError if "auto" found a chat template that is not supported. To be called only for
  // data with conversations.
  void require_usable() const;

  // Encodes a turn. Requires a template that is no chat template. Prompt and response are encoded
  // separately. If the tokenizer adds a space before each text, that space replaces the one between
  // them in the template (`[/INST] A`) or in the record ("A:" and " Paris").
  TurnTokens encode(const Conversation& conversation, size_t turn, const TextCodec& codec) const;

 private:
  Template(const std::string& name, std::string_view source) : name_(name), turn_(source, name) {}

  std::string name_;      // for messages
  jinja::Template turn_;  // the response is in {% generation %}
  std::optional<ChatTemplate> chat_;
  std::string refusal_;  // why the folder's chat template is not supported
};

// A single question as a prompt, and the tokens that end its answer.
struct Question {
  std::vector<int64_t> ids, end;
};
Question question_tokens(const Template& form, const std::string& question, const TextCodec& codec);

}  // namespace moe::data
