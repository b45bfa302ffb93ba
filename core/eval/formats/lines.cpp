#include "core/eval/formats/lines.h"

#include <algorithm>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::unique_ptr<FileReader> open_text(const std::filesystem::path& file) {
  if (file == "-") {
    return std::make_unique<FileReader>(open_standard_input(), "-");
  }
  std::error_code failure;
  const uint64_t bytes = std::filesystem::file_size(file, failure);  // fails for a pipe
  if (!failure && bytes > kMaxFileBytes) {
    throw UserError("{}: {} bytes, larger than the limit of 1 GiB; split it", file.string(), bytes);
  }
  return std::make_unique<FileReader>(file, Pipes::kAllowed);
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

LineReader::LineReader(const std::filesystem::path& file)
    : name_(file.string()), file_(open_text(file)) {}

bool LineReader::read_line(std::string& text) {
  if (!file_->read_line(text, kMaxFileBytes)) {
    if (all_blank_) {
      throw UserError("{}: the file is empty", name_);
    }
    return false;
  }
  bytes_ += text.size() + 1;
  if (bytes_ > kMaxFileBytes + 1) {  // a pipe tells no size beforehand
    throw UserError("{}: larger than the limit of 1 GiB; split it", name_);
  }
  if (++line_ == 1 && text.starts_with(kByteOrderMark)) {
    text.erase(0, kByteOrderMark.size());
  }
  all_blank_ = all_blank_ && is_blank(text);
  return true;
}

std::optional<Line> LineReader::next() {
  Line line;
  if (!read_line(line.text)) {
    return std::nullopt;
  }
  line.where = fmt::format("{} line {}", name_, line_);
  if (find_invalid_utf8(line.text) != kValidUtf8) {
    throw UserError("{}: not UTF-8; convert the file to UTF-8", line.where);
  }
  if (line.text.ends_with('\r') && file_->has_newline()) {
    line.text.pop_back();
  }
  return line;
}

int64_t LineReader::count_rest() {
  int64_t count = 0;
  for (std::string text; read_line(text);) {
    count += is_blank(text) ? 0 : 1;
  }
  return count;
}

std::string read_text(const std::filesystem::path& file) {
  std::string text = open_text(file)->read_rest(kMaxFileBytes);
  if (text.starts_with(kByteOrderMark)) {
    text.erase(0, kByteOrderMark.size());
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
  LineReader reader(file);
  std::vector<Line> lines;
  while (auto line = reader.next()) {
    lines.push_back(std::move(*line));
  }
  return lines;
}

std::optional<JsonLine> JsonLinesReader::next() {
  while (auto line = lines_.next()) {
    if (is_blank(line->text)) {
      continue;
    }
    Json json = parse_json(line->text, line->where);
    if (!json.is_object()) {
      throw UserError("{}: not a JSON object; each line must be one, in braces", line->where);
    }
    return JsonLine{std::move(json), std::move(line->where)};
  }
  return std::nullopt;
}

std::vector<JsonLine> read_jsonl(const std::filesystem::path& file) {
  JsonLinesReader reader(file);
  std::vector<JsonLine> records;
  while (auto record = reader.next()) {
    records.push_back(std::move(*record));
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

// One pass, one state: in a quoted field or not. A row is a line, and more where quotes hold line
// feeds.

std::optional<CsvRow> CsvReader::next() {
  while (auto line = lines_.next()) {
    line_ = std::move(*line);
    at_ = 0;
    CsvRow row{{}, line_.where};
    for (bool more = true; more;) {
      row.fields.push_back(read_field());
      more = at_ < line_.text.size();
      at_ += more ? 1 : 0;  // over the separator
    }
    if (row.fields.size() > 1 || !row.fields.front().empty()) {
      return row;
    }
  }
  return std::nullopt;
}

std::string CsvReader::read_field() {
  if (quotes_ && at_ < line_.text.size() && line_.text[at_] == '"') {
    return read_quoted();
  }
  const size_t begin = at_;
  at_ = std::min(line_.text.find(separator_, begin), line_.text.size());
  return line_.text.substr(begin, at_ - begin);
}

std::string CsvReader::read_quoted() {
  const std::string begin = line_.where;
  std::string field;
  for (++at_;; ++at_) {
    if (at_ >= line_.text.size()) {
      auto line = lines_.next();
      if (!line) {
        throw UserError("{}: a quoted field begins here and never ends; the file is cut", begin);
      }
      line_ = std::move(*line);
      field += '\n';
      at_ = static_cast<size_t>(-1);  // the loop steps to the first byte
      continue;
    }
    if (line_.text[at_] == '"') {
      if (at_ + 1 < line_.text.size() && line_.text[at_ + 1] == '"') {
        ++at_;
      } else {
        break;
      }
    }
    field += line_.text[at_];
  }
  ++at_;
  if (at_ < line_.text.size() && line_.text[at_] != separator_) {
    throw UserError("{}: text after a closing quote; double the quotes inside a field",
                    line_.where);
  }
  return field;
}

CsvTable::CsvTable(const std::filesystem::path& file, char separator) : rows_(file, separator) {
  if (auto row = rows_.next()) {
    header_ = std::move(row->fields);
  }
}

std::optional<CsvRow> CsvTable::next() {
  auto row = rows_.next();
  if (row && row->fields.size() != header_.size()) {
    throw UserError("{}: {} fields, the header names {}", row->where, row->fields.size(),
                    header_.size());
  }
  return row;
}

int64_t CsvTable::count_rest() {
  int64_t count = 0;
  while (rows_.next()) {
    ++count;
  }
  return count;
}

std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator, bool quotes) {
  CsvReader reader(file, separator, quotes);
  std::vector<CsvRow> rows;
  while (auto row = reader.next()) {
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace moe::eval
