#pragma once
// An option of a command, declared once. From the declaration come its flag, its key in recipes and
// in settings.toml, its conversion from text, the check of its range, whether a run may go on after
// it changed, and its line of help. A list of options is made for one settings object, whose
// members it reads and writes; the object must outlive it.

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

// A member that takes one of a few values, each of which has a word.
struct Choice {
  std::function<std::string()> get;             // the word of the present value; empty: open
  std::function<void(const std::string&)> set;  // UserError for an unknown word
  std::vector<std::string> words = {};          // all of them, where they are few
};

using Member = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                            std::filesystem::path*, std::optional<int64_t>*, std::optional<double>*,
                            std::vector<std::string>*, std::vector<std::filesystem::path>*, Choice>;

// The numbers that an option takes. Plain data: GCC 12 misreads a list of options whose ranges have
// a destructor.
struct Range {
  double least = 0, most = 0;
  bool is_checked = false;  // false: every number is taken, also those that are not finite
  bool is_open = false;     // the ends themselves are no values: (least, most)
  bool is_whole = false;
  const char* rule = nullptr;  // the words of an error; null: made of the numbers
};

Range whole_from(int64_t least);  // whole numbers, to 2^40
Range number_from(double least);  // least <= x
Range positive_number();          // 0 < x
Range whole_between(int64_t least, int64_t most);
Range number_between(double least, double most);  // least <= x <= most

// Groups of --help, in the order in which commands show them.
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
  std::string help = {};      // what it is, without its default; units are said here
  std::string fallback = {};  // what holds where it is not given; empty: the member's value
  std::string source = {};    // who says so: a paper, a program; empty: we
  Range range = {};
  bool changes_numbers = true;            // false: a run may go on with another value
  bool is_recorded = true;                // stands in settings.toml
  std::function<bool()> is_written = {};  // of settings.toml: false where the member means nothing
  std::string spelled = {};               // of the command line: "MODEL,--model"; empty: --name
  bool is_required = false;
  bool takes_commas = false;  // of a list: a,b as well as a b
  bool is_repeated = false;   // of a list: the flag stands before each value
};

using Options = std::vector<Option>;

Options joined(std::vector<Options> parts);

// A choice of `values`: pairs of a word and a value. `member` may be the value or an optional of
// it.
template <typename MemberType, typename Value>
Choice choice(const char* name, MemberType& member,
              std::vector<std::pair<std::string, Value>> values);
// The same by functions that convert, where those stand beside the type already.
template <typename MemberType, typename Value>
Choice choice(MemberType& member, Value (*parse)(const std::string&), const char* (*word)(Value));

// A text that is one of a few words.
Choice one_of(const char* name, std::string& member, std::vector<std::string> words);

// Returns the value as a user writes it; empty if the member is open or a list.
std::string value_text(const Member& member);
// Sets the member from the text that value_text() returns for it; "" makes an optional open.
// Returns false and changes nothing if `text` is no value of the member. Not for lists.
bool set_value(const Member& member, const std::string& text);
// Returns the value of a member that is a number and has one.
std::optional<double> number_of(const Member& member);
// Returns whether `value` is finite and within the range.
bool holds(const Range& range, double value);

// "--micro-batch".
std::string flag_of(const Option& option);
// The line of --help: what it is, its default, where that is from.
std::string describe(const Option& option);
// UserError names the flag and the rule: "--lr -1: must be 0 or a positive number".
void check_ranges(const Options& options);
// The same of one number as it is typed; what is no number is left to whoever converts it.
void check_range(const std::string& flag, const std::string& number, const Range& range);
// Returns `text` as the decimal digits of the integer that it is, for a member of an integer type;
// returns other text unchanged. Throws UserError if it is not a whole number in decimal digits, or
// if the member's type cannot hold it.
std::string integer_text(const Option& option, const std::string& text);
// The recorded options that have a value, a line each: key = value.
std::string toml_lines(const Options& options);
// Keys of recorded options that change no number.
std::set<std::string> free_keys(const Options& options);
// UserError lists what is known: "--pack 'x' is unknown; known: stream, none".
[[noreturn]] void refuse_word(const char* name, const std::string& word,
                              const std::vector<std::string>& known);
// A string as TOML writes it.
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
            refuse_word(name, text, words);
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
