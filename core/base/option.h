#pragma once
// Options of commands. Each is declared once, with its flag, its key in recipes and settings.toml,
// its conversion from text, its range, its line of help, and whether a run may resume with another
// value. A list of options reads and writes the members of a settings object, which must outlive
// the list.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace moe {

// Accessors of a member whose values have names, such as an enum.
struct Choice {
  std::function<std::string()> get;             // the name of the current value; empty: none
  std::function<void(const std::string&)> set;  // throws UserError if unknown
  std::vector<std::string> words = {};          // all names, if they are few
};

using Member = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                            std::filesystem::path*, std::optional<int64_t>*, std::optional<double>*,
                            std::vector<std::string>*, std::vector<std::filesystem::path>*, Choice>;

// The valid numbers of an option. Trivially destructible: GCC 12 miscompiles lists of options
// otherwise.
struct Range {
  double min = 0, max = 0;
  bool is_checked = false;  // false: every number is valid, finite or not
  bool is_open = false;     // the bounds are excluded: (min, max)
  bool is_whole = false;
  const char* rule = nullptr;  // the rule in errors; null: derived from the bounds
};

Range whole_from(int64_t min);  // whole numbers, to 2^40
Range number_from(double min);  // min <= x
Range seed_range();             // 0 to 2^63 - 1, for every random seed
Range positive_number();        // 0 < x
Range whole_between(int64_t min, int64_t max);
Range number_between(double min, double max);  // min <= x <= max

// Groups of --help, in order.
namespace group {
inline constexpr const char *kModel = "Model", *kData = "Data", *kBatch = "Batch",
                            *kOptimizer = "Optimizer", *kRouter = "Router", *kMemory = "Memory",
                            *kRanks = "Ranks", *kTasks = "Tasks", *kMeasure = "Measurement",
                            *kOutput = "Output";
}  // namespace group

struct Option {
  const char* name = "";  // "micro-batch": the flag is --micro-batch, the key micro-batch
  Member member;
  const char* group = "";
  std::string help = {};  // one line with units, without the default
  Range range = {};
  std::string fallback = {};              // description of the default; empty: the member's value
  std::string source = {};                // paper or program of the default; empty: ours
  bool changes_numbers = true;            // false: a run may resume with another value
  bool is_recorded = true;                // written to settings.toml
  std::function<bool()> is_written = {};  // if false: not in settings.toml
  std::string spelling = {};              // on the command line: "MODEL,--model"; empty: --name
  bool is_required = false;
  bool is_comma_separated = false;  // for lists: a,b as well as a b
  bool is_repeated = false;         // for lists: the flag precedes each value
};

using Options = std::vector<Option>;

// Returns a list option whose values may be separated by commas.
Option with_commas(Option option);

// Returns the concatenation of `parts`.
Options concat(std::vector<Options> parts);

// Returns a choice of `values`, pairs of a name and a value. `member` is a value or an optional.
template <typename MemberType, typename Value>
Choice choice(const char* name, MemberType& member,
              std::vector<std::pair<std::string, Value>> values);
// Overload with functions for the conversion.
template <typename MemberType, typename Value>
Choice choice(MemberType& member, Value (*parse)(const std::string&), const char* (*word)(Value));

// Returns a choice for a string that is one of a few words.
Choice one_of(const char* name, std::string& member, const std::vector<std::string>& words);

// Returns the value as on the command line; "" if the member has none. Not for lists.
std::string value_text(const Member& member);
// Sets the member from a text of value_text(); "" resets an optional. Returns false and changes
// nothing if `text` is not a valid value. Not for lists.
bool set_value(const Member& member, const std::string& text);
// Returns the value of a number; nothing for other types and empty optionals.
std::optional<double> numeric_value(const Member& member);
// Returns true if `value` is finite and within the range.
bool holds(const Range& range, double value);

// Returns "--micro-batch".
std::string flag_name(const Option& option);
// Returns the line of --help: help, default and source of the default.
std::string help_line(const Option& option);
// Throws UserError if a value is out of range: "--lr -1: must be 0 or a positive number".
void check_ranges(const Options& options);
// Overload for a number as typed; ignores text that is not a number.
void check_range(const std::string& flag, const std::string& number, const Range& range);
// Returns the decimal digits of the integer `text` for a member of an integer type, and `text` for
// other members. Throws UserError if `text` is no decimal integer or exceeds the member's type.
std::string integer_text(const Option& option, const std::string& text);
// Returns the recorded options that have a value, a line "key = value" each.
std::string toml_lines(const Options& options);
// Returns the keys of recorded options with changes_numbers false.
std::set<std::string> changeable_keys(const Options& options);
// Throws UserError with the known words: "--pack 'x' is unknown; known: stream, none".
[[noreturn]] void throw_unknown_word(const char* name, const std::string& word,
                                     const std::vector<std::string>& known);
// Returns a string literal of TOML.
std::string toml_string(const std::string& text);

template <typename MemberType, typename Value>
Choice choice(const char* name, MemberType& member,
              std::vector<std::pair<std::string, Value>> values) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) {
    words.push_back(word);
  }
  return {[&member, values] {
            for (const auto& [word, value] : values) {
              if (member == value) {
                return word;
              }
            }
            return std::string();
          },
          [name, &member, values, words](const std::string& text) {
            for (const auto& [word, value] : values) {
              if (word == text) {
                member = value;
                return;
              }
            }
            throw_unknown_word(name, text, words);
          },
          words};
}

template <typename MemberType, typename Value>
Choice choice(MemberType& member, Value (*parse)(const std::string&), const char* (*word)(Value)) {
  return {[&member, word] {
            const std::optional<Value> value = member;
            return value ? std::string(word(*value)) : std::string();
          },
          [&member, parse](const std::string& text) { member = parse(text); },
          {}};
}

}  // namespace moe
