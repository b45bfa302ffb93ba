#pragma once
// Reading one stage of tokenizer.json ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
// an object whose "type" says what it is. Each stage is a table from type to the function that
// reads it; a type that is not in the table is refused by name, with those that are.

#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/io/tokenizer/regex.h"

namespace moe::io {

template <typename Part>
struct StageType {
  const char* name;
  Part (*read)(const Json& json, const std::string& where);
};

// `where` names file and stage: "tokenizer.json: normalizer".
template <typename Part>
Part read_stage(const Json& json, const std::string& where,
                std::span<const StageType<Part>> types) {
  const std::string type = get_string(json, "type", where);
  std::string known;
  for (const auto& candidate : types) {
    if (type == candidate.name) {
      return candidate.read(json, where + " " + type);
    }
    known += known.empty() ? candidate.name : std::string(", ") + candidate.name;
  }
  throw UserError("{}: the type '{}' is not supported; supported: {}", where, printable(type),
                  known);
}

// The stages that a Sequence lists under `key`.
template <typename Part>
std::vector<Part> read_sequence(const Json& json, const std::string& key, const std::string& where,
                                Part (*read)(const Json&, const std::string&)) {
  const auto list = json.find(key);
  if (list == json.end() || !list->is_array()) {
    throw UserError("{}: '{}' must be a list", where, key);
  }
  std::vector<Part> parts;
  for (const auto& part : *list) {
    parts.push_back(read(part, where));
  }
  return parts;
}

// Returns how many bytes the stages of a tokenizer may make of a text of `bytes` bytes. The
// greatest growth in published tokenizers is that of NFKC, 11 times for U+FDFA, then 3 times for a
// space that becomes U+2581. Without a limit 40 stages that double a text take all memory.
constexpr size_t max_stage_bytes(size_t bytes) { return 64 * bytes + 1024; }

// Throws UserError if `bytes`, what a stage makes of a text, is more than `max_bytes`.
void check_growth(size_t bytes, size_t max_bytes, const std::string& where);

// {"pattern": {"String": TEXT}} or {"pattern": {"Regex": EXPRESSION}}.
Pattern read_pattern(const Json& json, const std::string& where);

// The value of `key`: one character. `fallback` 0: the key must be there.
char32_t read_character(const Json& json, const std::string& key, const std::string& where,
                        char32_t fallback = 0);

// How Metaspace treats the beginning of a text, in both spellings of its settings.
enum class PrependScheme { kAlways, kFirst, kNever };
PrependScheme read_prepend_scheme(const Json& json, const std::string& where);

}  // namespace moe::io
