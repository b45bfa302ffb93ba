#pragma once
// Options of commands, each declared once: its flag, its key in recipes and in settings.toml, its
// conversion from text, its range, whether a run may be resumed with another value, and its line of
// help. A list of options reads and writes the members of one settings object, which must outlive
// it.

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

// A member with a few values, each of which has a name.
struct Choice {
  std::function<std::string()> get;             // the name of the present value; empty: none
  std::function<void(const std::string&)> set;  // throws UserError if unknown
  std::vector<std::string> words = {};          // all names, if they are few
};

using Member = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                            std::filesystem::path*, std::optional<int64_t>*, std::optional<double>*,
                            std::vector<std::string>*, std::vector<std::filesystem::path>*, Choice>;

// The valid numbers of an option. Trivially destructible: GCC 12 misreads a list of options
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
Range seed_range();             // of every random seed: whole numbers of 0 to 2^63 - 1
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
  std::string fallback = {};              // the default in words; empty: the member's value
  std::string source = {};                // of the default: a paper, a program; empty: ours
  bool changes_numbers = true;            // false: a run may resume with another value
  bool is_recorded = true;                // written to settings.toml
  std::function<bool()> is_written = {};  // false: not written, as the member has no meaning
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

// Returns a choice of `values`, pairs of a name and a value. `member` may be the value or an
// optional of it.
template <typename MemberType, typename Value>
Choice choice(const char* name, MemberType& member,
              std::vector<std::pair<std::string, Value>> values);
// Overload by existing functions that convert.
template <typename MemberType, typename Value>
Choice choice(MemberType& member, Value (*parse)(const std::string&), const char* (*word)(Value));

// Returns a choice for a string that is one of a few words.
Choice one_of(const char* name, std::string& member, std::vector<std::string> words);

// Returns the value as a user writes it; empty if the member has no value or is a list.
std::string value_text(const Member& member);
// Sets the member from a text of value_text(); "" resets an optional. Returns false and changes
// nothing if `text` is no value of the member. Not for lists.
bool set_value(const Member& member, const std::string& text);
// Returns the value of a member that is a number and has one.
std::optional<double> numeric_value(const Member& member);
// Returns true if `value` is finite and within the range.
bool holds(const Range& range, double value);

// Returns "--micro-batch".
std::string flag_name(const Option& option);
// Returns the line of --help: the help, the default and its source.
std::string help_line(const Option& option);
// Throws UserError with flag and rule: "--lr -1: must be 0 or a positive number".
void check_ranges(const Options& options);
// Overload for a number as typed; ignores text that is not a number.
void check_range(const std::string& flag, const std::string& number, const Range& range);
// Returns `text` as the decimal digits of the integer that it is, for a member of an integer type;
// returns other text unchanged. Throws UserError if it is not a whole number in decimal digits, or
// if the member's type cannot hold it.
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
