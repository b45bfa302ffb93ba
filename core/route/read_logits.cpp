#include "core/route/read_logits.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::route {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr std::string_view kBlanks = " \t\r";

// Splits at commas, or at blanks if the line has no comma; removes blanks around fields.
std::vector<std::string_view> split_fields(std::string_view line) {
  const bool has_commas = line.find(',') != std::string_view::npos;
  const std::string_view separators = has_commas ? "," : kBlanks;
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const size_t end = std::min(line.find_first_of(separators), line.size());
    std::string_view field = line.substr(0, end);
    const size_t first = field.find_first_not_of(kBlanks);
    field = first == std::string_view::npos
                ? std::string_view()
                : field.substr(first, field.find_last_not_of(kBlanks) - first + 1);
    if (has_commas || !field.empty()) {
      fields.push_back(field);
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return fields;
}

std::optional<double> parse_number(std::string_view field) {
  double value = 0;
  const char* begin = field.data() + (field.starts_with('+') ? 1 : 0);
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

Json read_csv(const std::string& text, const std::string& where) {
  Json rows = Json::array();
  std::istringstream lines(text);
  int64_t number = 0;
  bool has_header = false;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto fields = split_fields(line);
    if (fields.empty() || fields[0].starts_with('#')) {
      continue;
    }
    const bool no_numbers = std::none_of(
        fields.begin(), fields.end(), [](auto field) { return parse_number(field).has_value(); });
    if (no_numbers && rows.empty() && !has_header) {
      has_header = true;
      continue;
    }
    Json row = Json::array();
    for (const auto field : fields) {
      const auto value = parse_number(field);
      USER_ERROR_IF(!value,
                    "{} line {}: '{}' is not a number; each line has the logits of one token",
                    where, number, field);
      row.push_back(*value);
    }
    USER_ERROR_IF(!rows.empty() && row.size() != rows[0].size(),
                  "{} line {}: {} numbers, the lines before have {}", where, number, row.size(),
                  rows[0].size());
    rows.push_back(std::move(row));
  }
  USER_ERROR_IF(rows.empty(), "{}: has no logits; write one token per line, separated by commas",
                where);
  return {{"logits", rows}};
}

}  // namespace

std::string read_input_text(const std::string& file) {
  if (file == "-") {
    return FileReader(open_standard_input(), "standard input").read_rest(kMaxBytes);
  }
  try {
    return read_small_file(file, kMaxBytes, Pipes::kAllowed);
  } catch (const UserError& error) {
    throw UserError("{}; give a JSON list of logits or a CSV file", error.what());
  }
}

Json read_route_input(const std::string& text, const std::string& where) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || (text[first] != '{' && text[first] != '[')) {
    return read_csv(text, where);
  }
  Json json = parse_json(text, where);
  if (json.is_array()) {
    return {{"logits", std::move(json)}};
  }
  USER_ERROR_IF(!json.contains("logits"), "{}: has no 'logits' (a list of rows)", where);
  return json;
}

}  // namespace moe::route
