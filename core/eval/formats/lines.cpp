#include "core/eval/formats/lines.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

template <typename Reader>
auto read_all(Reader reader) {
  std::vector<typename decltype(reader.next())::value_type> records;
  while (auto record = reader.next()) {
    records.push_back(std::move(*record));
  }
  return records;
}

const Json& get_member(const Json& json, const std::string& key, Json::value_t type,
                       const std::string& where) {
  const auto found = json.find(key);
  USER_ERROR_IF(found == json.end() || found->type() != type, "{}: '{}' is missing or not {}",
                where, key, type == Json::value_t::array ? "an array" : "an object");
  return *found;
}

using Kind = Field::Kind;

// Returns a field of kind kChoices or kAnswers.
OrderedJson get_pairs(const Json& record, const Field& field, const std::string& where) {
  const bool is_choices = field.kind == Kind::kChoices;
  const char* const first = is_choices ? "text" : "choices";
  const char* const second = is_choices ? "label" : "labels";
  const std::string place = fmt::format("{}: '{}'", where, field.name);
  const Json& pairs = get_object(record, field.name, where);
  const std::vector<std::string> texts = get_strings(pairs, first, place);
  const Json& labels = get_array(pairs, second, place);
  USER_ERROR_IF(labels.size() != texts.size() || texts.empty(),
                "{} must have arrays '{}' and '{}' of equal length, at least 1", place, first,
                second);
  for (const auto& label : labels) {
    USER_ERROR_IF(is_choices ? !label.is_string() : label != 0 && label != 1,
                  "{} has the label {}; it must be {}", place, label.dump(),
                  is_choices ? "a string" : "0 or 1");
  }
  return {{first, texts}, {second, OrderedJson(labels)}};
}

OrderedJson get_field(const Json& record, const Field& field, const std::string& where) {
  switch (field.kind) {
    case Kind::kText:
      return get_string(record, field.name, where);
    case Kind::kInt:
      return get_int(record, field.name, where);
    case Kind::kTexts:
      return get_strings(record, field.name, where);
    case Kind::kSortedTexts: {
      const std::vector<std::string> texts = get_strings(record, field.name, where);
      return std::set<std::string>(texts.begin(), texts.end());
    }
    case Kind::kChoices:
    case Kind::kAnswers:
      return get_pairs(record, field, where);
    case Kind::kAny:
      return record.contains(field.name) ? OrderedJson(record[field.name]) : OrderedJson();
    case Kind::kLabel:
      break;
  }
  return get_label(record, field, where);
}

OrderedJson exported_fields(const Json& record, const Schema& schema, const std::string& where) {
  OrderedJson fields = OrderedJson::object();
  for (const auto& field : schema) {
    fields[field.name] = get_field(record, field, where);
  }
  return fields;
}

// Returns the JSON value of a CSV field, of the type that field.kind requires.
Json csv_value(const std::string& text, const Field& field, const std::string& where) {
  const bool is_scalar =
      field.kind == Kind::kText || field.kind == Kind::kInt || field.kind == Kind::kLabel;
  if (field.kind == Kind::kAny ? text.starts_with('[') || text.starts_with('{') : !is_scalar) {
    return parse_literal(text, where);
  }
  if (field.kind == Kind::kInt || field.kind == Kind::kLabel) {
    if (const auto number = parse_int(text)) {
      return *number;
    }
    if (text == "True" || text == "False") {
      return text == "True";
    }
  }
  return text;
}

}  // namespace

LineReader::LineReader(const std::filesystem::path& file, bool takes_rows)
    : name_(file.string()), file_(data::open_data_file(file, Pipes::kAllowed)) {
  std::error_code failure;
  const uint64_t bytes = std::filesystem::file_size(file, failure);  // fails for a pipe
  USER_ERROR_IF(!failure && bytes > kMaxFileBytes,
                "{}: {} bytes, larger than the limit of 1 GiB; split it", name_, bytes);
  USER_ERROR_IF(file_.packing == data::Packing::kParquet && !takes_rows,
                "{}: this is a Parquet file, but a text file is expected; give it a name that ends "
                "in .parquet, or convert it",
                name_);
}

std::string LineReader::where() const {
  return fmt::format("{} {} {}", name_, file_.packing == data::Packing::kParquet ? "row" : "line",
                     line_);
}

bool LineReader::read_line(std::string& text) {
  constexpr int kEnd = std::char_traits<char>::eof();
  text.clear();
  ++line_;
  try {
    int byte = file_.bytes->sbumpc();
    for (; byte != kEnd; byte = file_.bytes->sbumpc()) {
      USER_ERROR_IF(++bytes_ > kMaxFileBytes, "{}: larger than the limit of 1 GiB; split it",
                    name_);
      if (byte == '\n') {
        break;
      }
      text.push_back(static_cast<char>(byte));
    }
    if (byte == kEnd && text.empty()) {
      USER_ERROR_IF(all_blank_, "{}: the file is empty", name_);
      return false;
    }
    has_newline_ = byte == '\n';
  } catch (const data::BrokenStream& broken) {
    throw UserError("{}: {}", where(), broken.what());
  }
  all_blank_ = all_blank_ && is_blank(text);
  return true;
}

std::optional<Line> LineReader::next() {
  Line line;
  if (!read_line(line.text)) {
    return std::nullopt;
  }
  line.where = where();
  data::check_utf8(line.text, line.where);
  if (line.text.ends_with('\r') && has_newline_) {
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
  LineReader lines(file);
  std::string text;
  while (const auto line = lines.next()) {
    text += line->text + "\n";
  }
  return text;
}

std::vector<Line> read_lines(const std::filesystem::path& file) {
  return read_all(LineReader(file));
}

std::optional<JsonLine> JsonLinesReader::next() {
  while (auto line = lines_.next()) {
    if (is_blank(line->text)) {
      continue;
    }
    Json json = parse_json(line->text, line->where);
    USER_ERROR_IF(!json.is_object(), "{}: not a JSON object; each line must be an object in braces",
                  line->where);
    return JsonLine{std::move(json), std::move(line->where)};
  }
  return std::nullopt;
}

std::vector<JsonLine> read_jsonl(const std::filesystem::path& file) {
  return read_all(JsonLinesReader(file));
}

const Json& get_array(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::array, where);
}

const Json& get_object(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::object, where);
}

std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where) {
  std::vector<std::string> strings;
  for (const Json& entry : get_array(json, key, where)) {
    USER_ERROR_IF(!entry.is_string(), "{}: '{}' must contain strings only, not {}", where, key,
                  entry.dump());
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

std::optional<CsvRow> CsvReader::read_row() {
  while (auto line = lines_.next()) {
    line_ = std::move(*line);
    at_ = 0;
    CsvRow row{{}, line_.where};
    for (bool more = true; more;) {
      row.fields.push_back(read_field());
      more = at_ < line_.text.size();
      at_ += more ? 1 : 0;  // skips the separator
    }
    if (row.fields.size() == 1 && row.fields.front().empty()) {
      continue;
    }
    return row;
  }
  return std::nullopt;
}

std::optional<CsvRow> CsvReader::next() {
  auto row = read_row();
  USER_ERROR_IF(row && header_fields_ > 0 && row->fields.size() != header_fields_,
                "{}: {} fields, but the header has {}", row->where, row->fields.size(),
                header_fields_);
  return row;
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
  for (++at_;;) {
    const size_t quote = std::min(line_.text.find('"', at_), line_.text.size());
    field.append(line_.text, at_, quote - at_);
    at_ = quote + 1;
    if (quote == line_.text.size()) {
      auto line = lines_.next();
      USER_ERROR_IF(!line,
                    "{}: a quoted field begins in this line and never ends; is the file truncated?",
                    begin);
      line_ = std::move(*line);
      field += '\n';
      at_ = 0;
    } else if (at_ < line_.text.size() && line_.text[at_] == '"') {
      field += '"';
      ++at_;
    } else {
      break;
    }
  }
  USER_ERROR_IF(at_ < line_.text.size() && line_.text[at_] != separator_,
                "{}: text after a closing quote; write a quote inside a field as two quotes",
                line_.where);
  return field;
}

std::vector<std::string> CsvReader::read_header() {
  std::vector<std::string> header = next().value_or(CsvRow()).fields;
  header_fields_ = header.size();
  return header;
}

int64_t CsvReader::count_rest() {
  int64_t count = 0;
  while (read_row()) {
    ++count;
  }
  return count;
}

std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator, bool quotes) {
  return read_all(CsvReader(file, separator, quotes));
}

int64_t get_label(const Json& record, const Field& field, const std::string& where) {
  USER_ERROR_IF(!record.contains(field.name), "{}: '{}' is missing; use a split with answers",
                where, field.name);
  const Json& value = record[field.name];
  const auto count = static_cast<int64_t>(field.names.size());
  int64_t number = -1;
  if (value.is_boolean()) {
    number = value.get<bool>() ? 1 : 0;
  } else if (value.is_number_integer() && value >= 0 && value < count) {
    number = value.get<int64_t>();
  } else if (value.is_string()) {
    const auto found = std::ranges::find(field.names, value.get<std::string>());
    number = found == field.names.end() ? -1 : found - field.names.begin();
  }
  USER_ERROR_IF(number < 0 || number >= count, "{}: '{}' is {}; it must be 0 to {} or one of {}{}",
                where, field.name, printable(value.dump()), count - 1, fmt::join(field.names, ", "),
                value == -1 || value == "" ? "; use a split with answers" : "");
  return number;
}

FirstDocuments read_exported(const std::filesystem::path& file, const Schema& schema,
                             int64_t limit) {
  if (data::format_extension(file) != ".csv") {
    return read_records(
        file,
        [&](const Json& json, const std::string& where) {
          return exported_fields(json, schema, where);
        },
        limit);
  }
  CsvReader rows(file);
  const std::vector<std::string> header = rows.read_header();
  return first_documents(std::move(rows), limit, [&](const CsvRow& row) -> Document {
    Json record = Json::object();
    for (const auto& field : schema) {
      const auto column = std::ranges::find(header, field.name) - header.begin();
      if (column < static_cast<int64_t>(header.size())) {
        record[field.name] = csv_value(row.fields[static_cast<size_t>(column)], field, row.where);
      }
    }
    return {exported_fields(record, schema, row.where), row.where};
  });
}

}  // namespace moe::eval
