#pragma once
// The forms of a record of a data file, of which core/io/formats.md has the table. Six of them are
// a conversation: turns of an instruction and its response, with an optional system text.
// core/data/templates.h makes text of a conversation.

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/data/chat_template.h"

namespace moe::data {

enum class Objective { kInstruct, kLm };

enum class Format { kRows, kAlpaca, kDolly, kPairs, kMessages, kShareGpt, kOpenOrca, kText };

struct Turn {
  std::string instruction;
  std::string input;  // Alpaca's input, Dolly's context; often empty
  std::string response;
  bool carries_loss = true;  // false: the record's "weight" is 0 or its "train" is false
};

struct Conversation {
  std::string system;       // empty = none
  std::vector<Turn> turns;  // at least one after read_conversation, no response blank
  // The record is a prompt pair: the template `paper` adds no newline to its prompt.
  bool verbatim = false;
};

// Parses --format: "alpaca", "openorca", ... Throws UserError listing the known names.
Format parse_format(const std::string& name);
const char* format_name(Format format);
const char* format_words(Format format);  // "Alpaca records", for messages
const char* format_key(Format format);    // the key that every record of the form has

bool is_conversation(Format format);  // all but rows and text

// Returns the form of a record by its keys; nothing if it has none. With Objective::kLm every
// record with a text is kText.
std::optional<Format> recognise(const Json& record, Objective objective);

bool is_blank(std::string_view text);

// Throws UserError, opening with `where`, for a key of a record that changes what is learned and is
// not supported, such as "images", and without a chat template "tools" or "reasoning_content" of a
// message.
void refuse_unsupported_keys(const Json& record, Format format, bool has_chat_template,
                             const std::string& where);

// Returns the keys of a record that are not read and are no usual metadata such as "id".
std::vector<std::string> unused_keys(const Json& record, Format format, bool has_chat_template);

// Returns "'text', 'id'" for messages; long lists are cut.
std::string quoted_keys(const Json& record);

// Reads the conversation of `record`, an object. Turns after the last response are dropped: they
// have no loss. Throws UserError, opening with `where`, for a missing key, a wrong type, an unknown
// role, a conversation that does not begin with a question or does not alternate, a blank response,
// two system texts, and a conversation without an answer that carries loss.
Conversation read_conversation(const Json& record, Format format, const std::string& where);

// Returns the instruction, and the input in lines of its own.
std::string question_text(const Turn& turn);

// Returns the conversation as the messages of a chat template.
Chat make_chat(const Conversation& conversation);

// Reads the conversation of `record` for a chat template, which decides about roles, their order
// and keys of messages. `json` is the same record. Messages after the last answer are dropped.
// Throws UserError as read_conversation() does for what is no list of messages and for missing
// answers.
Chat read_chat(const OrderedJson& record, const Json& json, Format format,
               const std::string& where);

}  // namespace moe::data
