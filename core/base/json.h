#pragma once
// The JSON we read: every file is hostile until read. Depth is limited, numbers are checked, errors
// name file and place.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // for files we write: keys keep their order

inline constexpr int kMaxJsonDepth = 64;

enum class DuplicateKeys { kLastWins, kRefused };

// Parses `text`; `where` opens every error ("model/config.json" or "data.jsonl line 7"). Throws
// UserError on broken JSON, invalid UTF-8 (with the byte's offset), numbers beyond a double, and
// nesting beyond kMaxJsonDepth.
Json parse_json(std::string_view text, const std::string& where,
                DuplicateKeys duplicates = DuplicateKeys::kLastWins);

// Reads and parses a file of at most `max_bytes`. Throws UserError when it is missing, too large or
// broken.
Json read_json(const std::filesystem::path& file, uint64_t max_bytes = uint64_t{1} << 30);

// Returns `json` as text to print: indented by `indent` spaces (-1: one line), with invalid UTF-8
// replaced by U+FFFD and control characters escaped (terminal_json()).
std::string json_text(const OrderedJson& json, int indent = -1);

// The value of `key` in the object `json`, of the asked type. Missing key or wrong type: UserError
// naming `where` and the key. The forms with a fallback take it for a missing key and for null.
// Integers are whole numbers of 64 bits (4.0 is none); doubles may be written as integers, and are
// finite.
int64_t get_int(const Json& json, const std::string& key, const std::string& where);
int64_t get_int(const Json& json, const std::string& key, const std::string& where,
                int64_t fallback);
double get_double(const Json& json, const std::string& key, const std::string& where);
double get_double(const Json& json, const std::string& key, const std::string& where,
                  double fallback);
bool get_bool(const Json& json, const std::string& key, const std::string& where, bool fallback);
std::string get_string(const Json& json, const std::string& key, const std::string& where);
std::string get_string(const Json& json, const std::string& key, const std::string& where,
                       const std::string& fallback);
std::vector<int64_t> get_ints(const Json& json, const std::string& key, const std::string& where);

}  // namespace moe
