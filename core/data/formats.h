#pragma once
// Formats of the records of a data file (table in core/io/formats.md). All but rows and text are
// conversations: turns of an instruction and its response, with an optional system text.
// core/data/templates.h renders a conversation as text.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/data/chat_template.h"
#include "core/data/example_set.h"

namespace moe::data {

enum class Objective { kInstruct, kLm };

enum class Format {
  kRows,
  kAlpaca,
  kDolly,
  kPairs,
  kChosen,
  kMessages,
  kShareGpt,
  kOpenOrca,
  kQuestions,
  kInputOutput,
  kText
};

struct Turn {
  std::string instruction;
  std::string input;  // Alpaca's input, Dolly's context; often empty
  std::string response;
  bool carries_loss = true;  // false: "weight" of the answer is 0, or "train" is false
};

struct Conversation {
  std::string system;       // empty: none
  std::vector<Turn> turns;  // at least one after read_conversation(); no response is blank
  bool verbatim = false;    // a prompt pair: the template `paper` adds no newline to its prompt
};

// Keys of a data file and the known keys that they stand for.
using Columns = std::vector<std::pair<std::string, std::string>>;

// Parses --columns: "question=instruction,answer=output". Throws UserError.
Columns parse_columns(const std::string& text);

// Parses --format: "alpaca", "openorca", ... Throws UserError listing the known names.
Format parse_format(const std::string& name);
const char* format_name(Format format);
const char* format_label(Format format);  // "Alpaca records", for messages
const char* format_key(Format format);    // the key that every record of the format has

bool is_conversation(Format format);  // all but rows and text

// Returns the format of a record by its keys, or nullopt. With Objective::kLm every record with a
// "text" and without "input_ids" is kText.
std::optional<Format> recognise(const Json& record, Objective objective);

bool is_blank(std::string_view text);

// Returns the keys of a record that are neither read nor common metadata such as "id". Throws
// UserError, opening with `where`, for a key that would change what is learned and is not
// supported, such as "images"; without a chat template also "tools" and "reasoning_content".
std::vector<std::string> check_keys(const Json& record, Format format, bool has_chat_template,
                                    const std::string& where);

// Returns "'text', 'id'" for error messages; long lists are cut.
std::string quoted_keys(const Json& record);

// Reads the conversation of `record`, an object. The content of a message may be a list of text
// parts; a prompt and its answer may be lists of messages, of which the prompt's carry no loss.
// Turns after the last response are dropped: they have no loss. Throws UserError, opening with
// `where`, for a missing key, a wrong type, an unknown role, a conversation that does not begin
// with a question or does not alternate, a blank response, two system texts, and a conversation
// without an answer that carries loss.
Conversation read_conversation(const Json& record, Format format, const std::string& where);

// Reads the examples of a row of tokens, one for each document with a target. Throws UserError,
// opening with `where`, for ids outside the vocabulary and keys that contradict each other.
std::vector<Example> read_row(const Json& record, int64_t vocab_size, const std::string& where);

// Returns the instruction, then the input on a line of its own if there is one.
std::string question_text(const Turn& turn);

// Converts a conversation to the messages of a chat template.
Chat make_chat(const Conversation& conversation);

// Reads the conversation of `record` for a chat template, which accepts or refuses roles, their
// order and keys of messages. `json` is the same record. Messages after the last answer are
// dropped. Throws UserError if the messages are no list of objects with a role, for two system
// texts and a blank response, and if no answer carries loss.
Chat read_chat(const OrderedJson& record, const Json& json, Format format,
               const std::string& where);

}  // namespace moe::data
