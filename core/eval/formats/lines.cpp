#include "core/eval/formats/lines.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

std::string read_bytes(const std::filesystem::path& file) {
  if (file == "-") {
    return {std::istreambuf_iterator<char>(std::cin), {}};
  }
  std::error_code failure;
  const auto status = std::filesystem::status(file, failure);
  if (!std::filesystem::exists(status)) {
    throw UserError("{}: no such file", file.string());
  }
  if (std::filesystem::is_directory(status)) {
    throw UserError("{}: a folder, a file is needed", file.string());
  }
  const uint64_t bytes = std::filesystem::file_size(file, failure);
  if (!failure && bytes > kMaxFileBytes) {
    throw UserError("{}: {} bytes, larger than the limit of 1 GiB; split it", file.string(), bytes);
  }
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) {
    throw UserError("{}: cannot be read; check its permissions", file.string());
  }
  return text;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

const Json& get_member(const Json& json, const std::string& key, Json::value_t type,
                       const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || found->type() != type) {
    throw UserError("{}: '{}' is missing or not {}", where, key,
                    type == Json::value_t::array ? "an array" : "an object");
  }
  return *found;
}

}  // namespace

std::string read_text(const std::filesystem::path& file) {
  std::string text = read_bytes(file);
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
  }
  if (const size_t bad = find_invalid_utf8(text); bad != kValidUtf8) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(bad), '\n');
    throw UserError("{} line {}: not UTF-8; convert the file to UTF-8", file.string(), line);
  }
  if (is_blank(text)) {
    throw UserError("{}: the file is empty", file.string());
  }
  return replace_all(text, "\r\n", "\n");
}

std::vector<Line> read_lines(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  std::vector<Line> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back({text.substr(begin, end - begin),
                     fmt::format("{} line {}", file.string(), lines.size() + 1)});
    begin = end + 1;
  }
  return lines;
}

std::vector<JsonLine> read_jsonl(const std::filesystem::path& file) {
  std::vector<JsonLine> records;
  for (const auto& [text, where] : read_lines(file)) {
    if (is_blank(text)) {
      continue;
    }
    Json json = parse_json(text, where);
    if (!json.is_object()) {
      throw UserError("{}: not a JSON object; each line must be one, in braces", where);
    }
    records.push_back({std::move(json), where});
  }
  return records;
}

const Json& get_array(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::array, where);
}

const Json& get_object(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::object, where);
}

std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw UserError("{}: '{}' is missing or not an array of strings", where, key);
  }
  std::vector<std::string> strings;
  for (const Json& entry : *found) {
    if (!entry.is_string()) {
      throw UserError("{}: '{}' holds {}, it must hold strings only", where, key, entry.dump());
    }
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

}  // namespace moe::eval
