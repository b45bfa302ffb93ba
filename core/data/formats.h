#pragma once
// What one record of a data file says, in each of the forms that people have. Six of them are a
// conversation: turns of an instruction and its response, perhaps under a system text. How a
// conversation becomes text is core/data/templates.h; the table of forms is core/io/formats.md.

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::data {

enum class Objective { kInstruct, kLm };

enum class Format { kRows, kAlpaca, kDolly, kPairs, kMessages, kShareGpt, kOpenOrca, kText };

struct Turn {
  std::string instruction;
  std::string input;  // Alpaca's input, Dolly's context; often empty
  std::string response;
};

struct Conversation {
  std::string system;       // empty = none
  std::vector<Turn> turns;  // at least one after read_conversation, no response blank
  // The prompt of a pair brings its own end: the papers' template adds no newline to it.
  bool verbatim = false;
};

// "alpaca", "openorca", ...: what --format takes. UserError lists the known names.
Format parse_format(const std::string& name);
const char* format_name(Format format);
const char* format_words(Format format);  // "Alpaca records", for messages
const char* format_key(Format format);    // the key that every record of the form has

bool is_conversation(Format format);  // all but rows and text

// The form of a record by its keys; nothing where no form is known. With Objective::kLm a record
// that has a text is one, whatever else it holds.
std::optional<Format> recognise(const Json& record, Objective objective);

bool is_blank(std::string_view text);

// "'text', 'id'" for messages; long lists are cut.
std::string keys_of(const Json& record);

// A conversation of `record`, an object. What follows the last response is left out: nothing is
// learned there. UserError, opening with `where`: a missing key, a wrong type, an unknown role, a
// conversation that does not begin with a question or does not alternate, a blank response.
Conversation read_conversation(const Json& record, Format format, const std::string& where);

}  // namespace moe::data
