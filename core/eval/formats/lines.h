#pragma once
// Text files of benchmarks, read whole and checked: UTF-8, a byte-order mark and Windows newlines
// tolerated.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

// The text of `file` without byte-order mark, "\r\n" turned into "\n". UserError when it is
// missing, not a file, larger than 1 GiB, empty (white space only), or not UTF-8 (the line is
// named). "-" reads standard input.
std::string read_text(const std::filesystem::path& file);

struct Line {
  std::string text;
  std::string where;  // "piqa/valid.jsonl line 7"
};

// Every line of read_text, blank ones included; no line after the last newline.
std::vector<Line> read_lines(const std::filesystem::path& file);

struct JsonLine {
  Json json;  // an object
  std::string where;
};

// One JSON object a line; blank lines are skipped. UserError names file and line.
std::vector<JsonLine> read_jsonl(const std::filesystem::path& file);

// The strings of the array `key`; UserError when it is missing, no array or holds anything but
// strings.
std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where);
// The array, or the object, `key`; UserError when it is missing or of another type.
const Json& get_array(const Json& json, const std::string& key, const std::string& where);
const Json& get_object(const Json& json, const std::string& key, const std::string& where);

// Where a record's text comes from, for statistics: its string "source", else `otherwise`.
template <typename AnyJson>
std::string source_of(const AnyJson& record, const std::string& otherwise) {
  const auto source = record.find("source");
  return source != record.end() && source->is_string() ? source->template get<std::string>()
                                                       : otherwise;
}

}  // namespace moe::eval
