#pragma once
// JSON and TOML, both as Json. Files are untrusted: depth is limited, numbers are checked, errors
// name file and place. No other file calls the parsers of nlohmann-json and toml++
// (tests/layout_test.cpp).

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keys keep their order; for files that moe writes

inline constexpr int kMaxJsonDepth = 64;

enum class DuplicateKeys { kLastWins, kRefused };

// Parses `text`. `where` is the start of every error ("model/config.json" or "data.jsonl line 7").
// Throws UserError for invalid JSON, invalid UTF-8 (with the byte's offset), numbers beyond a
// double, and nesting beyond kMaxJsonDepth.
Json parse_json(std::string_view text, const std::string& where,
                DuplicateKeys duplicates = DuplicateKeys::kLastWins);

// Parses like parse_json(); keys keep their order.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where);

// Parses like parse_json(), but returns nothing for invalid text.
std::optional<Json> try_parse_json(std::string_view text);

// Reads and parses a file. Throws UserError if it is missing, invalid or has more than `max_bytes`
// bytes.
Json read_json(const std::filesystem::path& file, uint64_t max_bytes = uint64_t{1} << 30);

// Returns `json` as printable text: indented by `indent` spaces (-1: one line), with invalid UTF-8
// replaced by U+FFFD and control characters escaped (terminal_json()).
std::string json_text(const OrderedJson& json, int indent = -1);

// Returns true if `json` has `key` and its value is not null.
bool has_value(const Json& json, const std::string& key);

// Return the value of `key` in the object `json`. If the key is missing or null and there is a
// `fallback`, return that. Otherwise throw UserError naming `where` and the key if the key is
// missing or the value has another type. Integers are 64-bit whole numbers (not 4.0); doubles are
// finite and may be written as integers.
int64_t get_int(const Json& json, const std::string& key, const std::string& where,
                std::optional<int64_t> fallback = {});
double get_double(const Json& json, const std::string& key, const std::string& where,
                  std::optional<double> fallback = {});
bool get_bool(const Json& json, const std::string& key, const std::string& where, bool fallback);
std::string get_string(const Json& json, const std::string& key, const std::string& where,
                       const std::optional<std::string>& fallback = {});
std::vector<int64_t> get_ints(const Json& json, const std::string& key, const std::string& where);

inline constexpr int kMaxTomlNesting = 64;  // open brackets and braces
inline constexpr int kMaxTomlDots = 32;     // in one key

// Parses TOML (recipes, settings of runs, task files) into an object. Tables become objects with
// ascending keys, dates and times become strings; floating-point numbers may be infinite or NaN.
// Throws UserError with `where` and the line for invalid TOML (including a repeated key), nesting
// beyond the bounds, and a letter outside ASCII that is not in a string or comment.
Json parse_toml(std::string_view text, const std::string& where);

}  // namespace moe
