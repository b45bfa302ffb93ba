#include "core/data/records.h"

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace moe::data {

namespace {

constexpr int kEnd = std::char_traits<char>::eof();
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kSeparator = "<|endoftext|>";

bool is_space(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

RecordReader::RecordReader(const std::filesystem::path& file)
    : file_(file), file_bytes_(open_data_file(file)) {
  try {
    find_form();
  } catch (const BrokenStream& broken) {
    fail(broken);
  }
}

void RecordReader::find_form() {
  const auto inner = file_bytes_.packing == Packing::kNone ? file_ : file_.stem();
  const bool named_text = inner.extension() == ".txt";
  if (!named_text) {
    skip_space();
  }
  const int first = peek();
  if (first == kEnd) {
    throw UserError("{}: the file is empty", file_.string());
  }
  if (!named_text && first == '[') {
    form_ = RecordForm::kJsonArray;
    take();
    array_open_ = true;
  } else if (!named_text && first == '{') {
    form_ = RecordForm::kJsonLines;
  }
}

std::optional<Record> RecordReader::next() {
  try {
    return next_of_form();
  } catch (const BrokenStream& broken) {
    fail(broken);
  }
}

void RecordReader::fail(const BrokenStream& broken) const {
  throw UserError("{} line {}: {}", file_.string(), line_, broken.what());
}

std::optional<Record> RecordReader::next_of_form() {
  switch (form_) {
    case RecordForm::kJsonLines:
      return next_line();
    case RecordForm::kJsonArray:
      return next_element();
    default:
      return next_document();
  }
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

std::optional<Record> RecordReader::next_element() {
  skip_space();
  if (array_open_ && peek() == ']') {
    take();
    skip_space();
    array_open_ = false;
  }
  if (!array_open_) {
    if (peek() != kEnd) {
      throw UserError("{} line {}: text after the end of the JSON array", file_.string(), line_);
    }
    return std::nullopt;
  }
  Record record;
  record.line = line_;
  if (peek() != '{') {
    throw UserError(
        "{} line {}: broken JSON: an array of objects {{...}} is expected; {}", file_.string(),
        line_, peek() == kEnd ? "the file ends before its ']': is it cut short?" : "mend the line");
  }
  read_element_text(record.text);
  skip_space();
  if (peek() == ',') {
    take();
    skip_space();
    if (peek() == ']') {
      throw UserError("{} line {}: broken JSON: a comma before the ']' that ends the array",
                      file_.string(), line_);
    }
  } else if (peek() != ']') {
    throw UserError("{} line {}: broken JSON: {}", file_.string(), line_,
                    peek() == kEnd ? "the file ends before its ']': is it cut short?"
                                   : "a comma or ']' is missing after an element");
  }
  return record;
}

// From '{' to the '}' that closes it; quotes and escapes are respected, all else is the JSON
// parser's to judge.
void RecordReader::read_element_text(std::string& text) {
  const int64_t line = line_;
  int64_t depth = 0;
  bool quoted = false;
  do {
    const int byte = take();
    if (byte == kEnd) {
      throw UserError(
          "{} line {}: broken JSON: the element that starts here is not closed: is the file cut "
          "short?",
          file_.string(), line);
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
    check_length(text, line);
  } while (depth > 0);
}

std::optional<Record> RecordReader::next_document() {
  std::string text;
  std::string line;
  int64_t start = line_;
  for (bool more = true; more;) {
    const int64_t line_before = line_;
    more = read_line(line);
    const bool ends = !more || trim(line) == kSeparator;
    if (ends && !text.empty()) {
      if (find_invalid_utf8(text) != kValidUtf8) {
        throw UserError(
            "{} line {}: the document that starts here is not valid UTF-8; convert the file to "
            "UTF-8",
            file_.string(), start);
      }
      return Record{std::string(trim(text)), start};
    }
    if (ends || (text.empty() && trim(line).empty())) {
      continue;  // between documents
    }
    if (text.empty()) {
      start = line_before;
    }
    text += line;
    text += '\n';
    check_length(text, start);
  }
  return std::nullopt;
}

bool RecordReader::read_line(std::string& line) {
  line.clear();
  if (peek() == kEnd) {
    return false;
  }
  const int64_t number = line_;
  for (int byte = take(); byte != kEnd && byte != '\n'; byte = take()) {
    line.push_back(static_cast<char>(byte));
    check_length(line, number);
  }
  return true;
}

void RecordReader::check_length(const std::string& text, int64_t line) const {
  if (text.size() > kMaxRecordBytes) {
    throw UserError(
        "{} line {}: the record that starts here is longer than {} MiB; split it (documents of a "
        "text are separated "
        "by lines {})",
        file_.string(), line, kMaxRecordBytes >> 20, kSeparator);
  }
}

int RecordReader::peek() { return file_bytes_.bytes->sgetc(); }

int RecordReader::take() {
  const int byte = file_bytes_.bytes->sbumpc();
  line_ += byte == '\n' ? 1 : 0;
  return byte;
}

void RecordReader::skip_space() {
  while (is_space(peek())) {
    take();
  }
}

}  // namespace moe::data
