#pragma once
// Conversations in the form of a chat template: that of the model folder, a file, or a published
// one by its name. Templates are rendered as transformers' apply_chat_template() does (core/jinja).
// The text of messages never becomes a special token.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/data/text_codec.h"
#include "core/jinja/template.h"

namespace moe::data {

struct ChatMessage {
  OrderedJson json;          // "role", "content" and what else the record has
  bool carries_loss = true;  // of an assistant's message
};

struct Chat {
  std::vector<ChatMessage> messages;
  OrderedJson tools, documents;  // null: none
};

struct ChatOptions {
  OrderedJson arguments = OrderedJson::object();  // more names for the template
  std::string date;                               // YYYY-MM-DD, for strftime_now(); "": today
};

// Parses the values of --chat-template-args (a JSON object, or "") and --template-date. Throws
// UserError naming the flag.
ChatOptions parse_chat_options(const std::string& arguments, const std::string& date);
std::string today();  // as YYYY-MM-DD

class ChatTemplate {
 public:
  // Returns the template of a model folder, nothing if it has none: chat_template.jinja, or
  // "chat_template" of tokenizer_config.json, a text or a list of {"name", "template"} of which
  // "default" counts, and "tool_use" if there are tools. Throws UserError if it is broken.
  static std::optional<ChatTemplate> find(const std::filesystem::path& folder,
                                          const ChatOptions& options = {});
  // Returns the template in `file`, for the special tokens of `folder`.
  static ChatTemplate read(const std::filesystem::path& file, const std::filesystem::path& folder,
                           const ChatOptions& options = {});
  // Returns a published template: llama3, chatml, zephyr, mistral, mistral-v0 (7B-Instruct-v0.1 as
  // first published), mistral-v3, mistral-tekken (Nemo), mistral-v7.
  static ChatTemplate named(const std::string& form, const std::filesystem::path& folder,
                            const ChatOptions& options = {});
  static const std::vector<std::string>& names();

  // Renders the conversation, with the ranges that carry loss: {% generation %} where the template
  // has it, else all that follows the generation prompt up to the token that ends the turn. With
  // `only_last` they are those of the last assistant's message. Throws UserError if the template
  // refuses the conversation, does not use what it holds, or writes no answer.
  FilledChat fill(const Chat& chat, bool only_last, const TextCodec& codec) const;
  // Renders the conversation and the beginning of the assistant's next message. If the last message
  // is the assistant's, the text ends with it instead (transformers' continue_final_message).
  FilledText fill_prompt(const Chat& chat, const TextCodec& codec) const;

  // Throws UserError if the vocabulary lacks a special token of a published template.
  void check_marks(const TextCodec& codec) const;
  // Returns the special tokens of a published template; none for other templates.
  const std::vector<std::string>& marks() const { return marks_; }

  bool uses_date() const;                                // calls strftime_now()
  const std::string& origin() const { return origin_; }  // a file or a name, for messages
  const std::string& source() const { return templates_[0].source(); }
  // Returns a text that differs for templates that render differently.
  std::string words() const;

 private:
  ChatTemplate(const std::string& source, const std::string& origin,
               const std::filesystem::path& folder, const ChatOptions& options);
  jinja::Rendered render(const Chat& chat, size_t count, bool adds_prompt,
                         const TextCodec& codec) const;
  void check_used(const Chat& chat) const;

  std::string origin_;
  std::vector<jinja::Template> templates_;  // the default one, and that for tools if there is one
  OrderedJson names_;                       // special tokens and arguments
  std::string date_;
  std::vector<std::string> marks_;  // that the vocabulary must have
};

}  // namespace moe::data
