#include "core/data/records.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe::data {

namespace {

constexpr int kEnd = std::char_traits<char>::eof();
constexpr std::string_view kJsonSpace = " \t\r\n";
constexpr std::string_view kSeparator = "<|endoftext|>";
constexpr const char* kCutShort = "the file ends before its ']': is it cut short?";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kJsonSpace) - begin + 1);
}

}  // namespace

auto RecordReader::with_line(const auto& read) {
  try {
    return read();
  } catch (const BrokenStream& broken) {
    fail(line_, broken.what());
  }
}

RecordReader::RecordReader(const std::filesystem::path& file, Pipes pipes)
    : file_(file), name_(data_file_name(file, pipes)), file_bytes_(open_data_file(file, pipes)) {
  with_line([this] { find_form(); });
}

void RecordReader::find_form() {
  const std::string name = format_extension(file_);
  const bool named_text = name == ".txt", is_tsv = name == ".tsv";
  while (is_tsv && (peek() == '\r' || peek() == '\n')) {
    take();
  }
  if (!named_text && !is_tsv) {  // a tab may begin a header: its first column has no name
    skip_space();
  }
  const int first = peek();
  USER_ERROR_IF(first == kEnd, "{}: the file is empty", name_);
  if (!named_text && first == '[') {
    form_ = RecordForm::kJsonArray;
    take();
    array_open_ = true;
  } else if (!named_text && first == '{') {
    find_json_form();
  } else if (is_tsv || name == ".csv") {
    form_ = RecordForm::kTable;
    header_ = read_row();
    for (const auto& column : header_) {
      check_utf8(column, name_);
      USER_ERROR_IF(std::ranges::count(header_, column) > 1, "{}: two columns are named '{}'",
                    name_, printable(column, 40));
    }
  }
}

// Sets the form: {"data": [{...}, ...]}, objects of several lines if the first line is "{" alone,
// else lines. Reads the beginning of the file, and puts it back unless it is {"data": [.
void RecordReader::find_json_form() {
  const int64_t line = line_;
  std::string text;
  std::string_view left = "{\"data\":[{";
  while (left.size() > 1 && peek() != kEnd) {
    const auto byte = static_cast<char>(peek());
    if (kJsonSpace.find(byte) == kJsonSpace.npos && byte != left[0]) {
      break;
    }
    left.remove_prefix(byte == left[0] ? 1 : 0);
    text += static_cast<char>(take());
  }
  skip_space();
  array_open_ = array_is_wrapped_ = left == "{" && peek() == '{';
  if (array_is_wrapped_) {
    form_ = RecordForm::kJsonArray;
    return;
  }
  const size_t end = text.find('\n');
  const bool has_lone_brace = end != std::string::npos && trim(text.substr(0, end)) == "{";
  form_ = has_lone_brace ? RecordForm::kJsonObjects : RecordForm::kJsonLines;
  put_back_ = std::move(text);
  line_ = line;
}

std::optional<Record> RecordReader::next() {
  return with_line([this] {
    return form_ == RecordForm::kJsonLines     ? next_line()
           : form_ == RecordForm::kJsonObjects ? next_object()
           : form_ == RecordForm::kJsonArray   ? next_element()
           : form_ == RecordForm::kTable       ? next_row()
                                               : next_document();
  });
}

void RecordReader::fail(int64_t line, const std::string& message) const {
  throw UserError("{} line {}: {}", name_, line, message);
}

std::optional<Record> RecordReader::next_line() {
  Record record;
  while (record.line = line_, read_line(record.text)) {
    if (!trim(record.text).empty()) {
      return record;
    }
  }
  return std::nullopt;
}

std::optional<Record> RecordReader::next_object() {
  skip_space();
  if (peek() == kEnd) {
    return std::nullopt;
  }
  if (peek() != '{') {
    fail(line_, "broken JSON: an object {...} is expected; correct the line");
  }
  Record record{"", line_};
  read_to_brace(record.text, 0);
  return record;
}

std::optional<Record> RecordReader::next_row() {
  Record record;
  std::vector<std::string> fields;
  do {
    record.line = line_;
    fields = read_row();
    if (fields.empty()) {
      return std::nullopt;
    }
  } while (fields == std::vector<std::string>{""});
  const std::string where = fmt::format("{} line {}", name_, record.line);
  try {
    USER_ERROR_IF(fields.size() != header_.size(), "{}: {} fields, but the header has {}", where,
                  fields.size(), header_.size());
    OrderedJson row;
    for (size_t i = 0; i < fields.size(); ++i) {
      check_utf8(fields[i], where);
      row[header_[i]] = fields[i];
    }
    record.text = row.dump();
  } catch (const UserError& error) {
    record.error = error.what();
    record.text = json_text(OrderedJson(fields));
  }
  return record;
}

// Reads the fields of a row. A field in quotes may hold separators, line ends and doubled quotes.
std::vector<std::string> RecordReader::read_row() {
  const int separator = format_extension(file_) == ".tsv" ? '\t' : ',';
  const int64_t line = line_;
  std::vector<std::string> fields;
  std::string field;
  bool is_quoted = false, was_quoted = false;
  for (int64_t bytes = 0;; ++bytes) {
    const int byte = take();
    if (byte == kEnd && bytes == 0) {
      return fields;
    }
    if (is_quoted) {
      if (byte == kEnd) {
        fail(line, "a quoted field of this row is not closed: is the file cut short?");
      }
      is_quoted = byte != '"' || peek() == '"';
      if (is_quoted) {
        field += static_cast<char>(byte == '"' ? take() : byte);
      }
    } else if (byte == '"' && field.empty() && !was_quoted) {
      is_quoted = was_quoted = true;
    } else if (byte == separator || byte == '\n' || byte == kEnd) {
      if (byte != separator && !was_quoted && field.ends_with('\r')) {
        field.pop_back();
      }
      fields.push_back(std::exchange(field, ""));
      was_quoted = false;
      if (byte != separator) {
        return fields;
      }
    } else if (!was_quoted) {
      field += static_cast<char>(byte);
    } else if (byte != '\r') {
      fail(line, "text after a closing quote; write a quote within a field as two quotes");
    }
    check_length(static_cast<size_t>(bytes), line);
  }
}

std::optional<Record> RecordReader::next_element() {
  skip_space();
  if (array_open_ && peek() == ']') {
    take();
    array_open_ = false;
    if (std::string rest; array_is_wrapped_) {
      read_to_brace(rest, 1);
    }
    skip_space();
  }
  if (!array_open_) {
    if (peek() != kEnd) {
      fail(line_, "text after the end of the JSON array");
    }
    return std::nullopt;
  }
  Record record;
  record.line = line_;
  if (peek() != '{') {
    fail(line_, std::string("broken JSON: an array of objects {...} is expected; ") +
                    (peek() == kEnd ? kCutShort : "correct the line"));
  }
  read_to_brace(record.text, 0);
  skip_space();
  if (peek() == ',') {
    take();
    skip_space();
    if (peek() == ']') {
      fail(line_, "broken JSON: a comma before the ']' that ends the array");
    }
  } else if (peek() != ']') {
    fail(line_, std::string("broken JSON: ") +
                    (peek() == kEnd ? kCutShort : "a comma or ']' is missing after an element"));
  }
  return record;
}

// Reads to the '}' outside of strings that closes `depth` braces and those that are read. The JSON
// parser checks the text later.
void RecordReader::read_to_brace(std::string& text, int64_t depth) {
  const int64_t line = line_;
  bool quoted = false;
  do {
    const int byte = take();
    if (byte == kEnd) {
      fail(line, "broken JSON: the element that starts here is not closed: is the file cut short?");
    }
    text.push_back(static_cast<char>(byte));
    if (quoted) {
      if (byte == '\\' && peek() != kEnd) {
        text.push_back(static_cast<char>(take()));
      }
      quoted = byte != '"';
    } else {
      quoted = byte == '"';
      depth += byte == '{' ? 1 : byte == '}' ? -1 : 0;
    }
    check_length(text.size(), line);
  } while (depth > 0);
}

std::optional<Record> RecordReader::next_document() {
  Record record;
  std::string line;
  for (int64_t number = line_; read_line(line); number = line_) {
    if (find_invalid_utf8(line) != kValidUtf8) {
      check_utf8(line, fmt::format("{} line {}", name_, number));
    }
    const bool is_empty = record.text.empty(), is_separator = trim(line) == kSeparator;
    if (is_separator && !is_empty) {
      break;
    }
    if (!is_separator && (!is_empty || !trim(line).empty())) {
      record.line = is_empty ? number : record.line;
      record.text += line + '\n';
      check_length(record.text.size(), record.line);
    }
  }
  record.text = std::string(trim(record.text));
  return record.text.empty() ? std::nullopt : std::optional(std::move(record));
}

bool RecordReader::read_line(std::string& line) {
  line.clear();
  if (peek() == kEnd) {
    return false;
  }
  const int64_t number = line_;
  for (int byte = take(); byte != kEnd && byte != '\n'; byte = take()) {
    line.push_back(static_cast<char>(byte));
    check_length(line.size(), number);
  }
  return true;
}

void RecordReader::check_length(size_t bytes, int64_t line) const {
  if (bytes > kMaxRecordBytes) {
    fail(line, fmt::format("the record that starts here is longer than {} MiB; split it (documents "
                           "of a text are separated by lines {})",
                           kMaxRecordBytes >> 20, kSeparator));
  }
}

int RecordReader::peek() {
  return put_back_at_ < put_back_.size() ? static_cast<uint8_t>(put_back_[put_back_at_])
                                         : file_bytes_.bytes->sgetc();
}

int RecordReader::take() {
  const int byte = put_back_at_ < put_back_.size() ? static_cast<uint8_t>(put_back_[put_back_at_++])
                                                   : file_bytes_.bytes->sbumpc();
  line_ += byte == '\n' ? 1 : 0;
  return byte;
}

void RecordReader::skip_space() {
  while (peek() != kEnd && kJsonSpace.find(static_cast<char>(peek())) != kJsonSpace.npos) {
    take();
  }
}

}  // namespace moe::data
