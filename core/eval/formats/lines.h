#pragma once
// Readers of text files by lines, JSON Lines and CSV, and the records that the Hub exports. UTF-8
// is required; a byte-order mark and Windows newlines are accepted.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/eval/formats/documents.h"

namespace moe::eval {

struct Line {
  std::string text;
  std::string where;  // "piqa/valid.jsonl line 7"
};

// Returns the lines of a text file one by one, blank ones included, without byte-order mark and
// line ends. Holds one line in memory.
class LineReader {
 public:
  // "-" reads standard input. Throws UserError: missing, a folder, larger than 1 GiB, not readable.
  explicit LineReader(const std::filesystem::path& file);

  // Throws UserError if the line is not UTF-8, and at the end if all lines were blank.
  std::optional<Line> next();
  // Reads to the end and returns the number of lines that are not blank. Checks no UTF-8.
  int64_t count_rest();

 private:
  bool read_line(std::string& text);

  std::string name_;
  std::unique_ptr<FileReader> file_;
  int64_t line_ = 0;    // lines read so far
  uint64_t bytes_ = 0;  // of these lines
  bool all_blank_ = true;
};

// Returns the text of `file` without byte-order mark, "\r\n" replaced by "\n". Throws UserError as
// LineReader does.
std::string read_text(const std::filesystem::path& file);

struct JsonLine {
  Json json;  // an object
  std::string where;
};

// Returns the JSON objects of a file, one per line; skips blank lines.
class JsonLinesReader {
 public:
  explicit JsonLinesReader(const std::filesystem::path& file) : lines_(file) {}

  std::optional<JsonLine> next();                       // throws UserError with file and line
  int64_t count_rest() { return lines_.count_rest(); }  // the remaining records, not parsed

 private:
  LineReader lines_;
};

// Return all lines, or all records, of `file`.
std::vector<Line> read_lines(const std::filesystem::path& file);
std::vector<JsonLine> read_jsonl(const std::filesystem::path& file);

// Returns a document for each record of a JSON Lines file; `make(json, where)` returns its fields.
template <typename Make>
std::vector<Document> read_records(const std::filesystem::path& file, const Make& make) {
  JsonLinesReader records(file);
  std::vector<Document> documents;
  while (const auto record = records.next()) {
    documents.push_back({make(record->json, record->where), record->where});
  }
  return documents;
}

// Return the array of strings, the array, or the object `key`. Throw UserError if it is missing or
// has another type.
std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where);
const Json& get_array(const Json& json, const std::string& key, const std::string& where);
const Json& get_object(const Json& json, const std::string& key, const std::string& where);

// Returns the source of a record for statistics: its string "source", else `fallback`.
template <typename AnyJson>
std::string get_source(const AnyJson& record, const std::string& fallback) {
  const auto source = record.find("source");
  return source != record.end() && source->is_string() ? source->template get<std::string>()
                                                       : fallback;
}

// A row of comma- or tab-separated values. Quoted fields may hold separators, doubled quotes and
// line feeds.
struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // file and the row's first line
};

// Returns the rows of a file one by one; skips blank lines.
class CsvReader {
 public:
  // `quotes`: true if fields may be quoted. Throws UserError as LineReader does.
  explicit CsvReader(const std::filesystem::path& file, char separator = ',', bool quotes = true)
      : lines_(file), separator_(separator), quotes_(quotes) {}

  // Returns the fields of the first row. Later rows must have as many.
  std::vector<std::string> read_header();
  // Throws UserError with the line: a quote that is never closed, text after a closing quote, or
  // more or fewer fields than the header.
  std::optional<CsvRow> next();
  int64_t count_rest();  // reads to the end; returns the number of rows, whose fields may be any

 private:
  std::optional<CsvRow> read_row();  // of any number of fields
  std::string read_field();
  std::string read_quoted();

  LineReader lines_;
  char separator_;
  bool quotes_;
  size_t header_fields_ = 0;  // 0: without a header
  Line line_;                 // the current line
  size_t at_ = 0;             // byte offset in it
};

std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator = ',',
                             bool quotes = true);

// A field of a Hub data set. Exported records (JSONL, CSV) are checked against a list of fields and
// put into its order; labels become numbers.
struct Field {
  enum class Kind {
    kText,
    kInt,
    kLabel,    // 0 .. names.size() - 1; also given as a name, or as true and false
    kTexts,    // ["..", ..]
    kChoices,  // {"text": [..], "label": [..]}, equal lengths, at least 1
    kAnswers,  // {"choices": [..], "labels": [0 or 1, ..]}, equal lengths, at least 1
    kAny,      // kept unchanged; null if missing
  };
  std::string name;
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // of a label's values
};
using Schema = std::vector<Field>;

// Reads FILE.jsonl, or FILE.csv with a header (lists as Python or numpy print them), with the
// fields of `schema`. Throws UserError if a field is missing, has another type, or is a label out
// of range.
FirstDocuments read_exported(const std::filesystem::path& file, const Schema& schema,
                             int64_t limit = kAllDocuments);

// Returns the number of a label that is given as a number, a boolean or a name. Throws UserError if
// `record` lacks the field or its value is no label.
int64_t get_label(const Json& record, const Field& field, const std::string& where);

}  // namespace moe::eval
