#pragma once
// Readers of text files, JSON Lines, CSV, and data sets exported from the Hugging Face Hub, plain
// or compressed (core/data/records.h). Text must be UTF-8. Readers remove a byte-order mark and
// Windows line ends.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/data/records.h"
#include "core/eval/formats/documents.h"

namespace moe::eval {

struct Line {
  std::string text;
  std::string where;  // "piqa/valid.jsonl line 7"
};

// Reader of the lines of a text file, including blank ones. Keeps one line in memory.
class LineReader {
 public:
  // "-" is standard input. With `takes_rows`, a Parquet file is read as one JSON object per row.
  // Throws the UserErrors of open_data_file(), and UserError for more than 1 GiB, and for Parquet
  // without `takes_rows`.
  explicit LineReader(const std::filesystem::path& file, bool takes_rows = false);

  // Returns the next line without its line end; nullopt at the end of the file. Throws UserError if
  // the line is not UTF-8, or at the end of the file if all lines are blank.
  std::optional<Line> next();
  // Reads to the end of the file and returns the number of lines that are not blank. Does not check
  // that they are UTF-8.
  int64_t count_rest();

 private:
  bool read_line(std::string& text);
  std::string where() const;  // of the last line

  std::string name_;
  data::OpenFile file_;
  bool has_newline_ = false;  // whether a '\n' followed the last line
  int64_t line_ = 0;          // number of lines read so far
  uint64_t bytes_ = 0;        // bytes read so far
  bool all_blank_ = true;
};

// Returns the lines of `file`, each followed by "\n". Throws the UserErrors of LineReader.
std::string read_text(const std::filesystem::path& file);

struct JsonLine {
  Json json;  // an object
  std::string where;
};

// Reader of a file with one JSON object per line, or of the rows of a Parquet file. Skips blank
// lines.
class JsonLinesReader {
 public:
  explicit JsonLinesReader(const std::filesystem::path& file) : lines_(file, true) {}

  // Returns the next object; nullopt at the end of the file. Throws UserError, naming file and
  // line, if a line is not a JSON object.
  std::optional<JsonLine> next();
  // Returns the number of remaining objects, without parsing them.
  int64_t count_rest() { return lines_.count_rest(); }

 private:
  LineReader lines_;
};

std::vector<Line> read_lines(const std::filesystem::path& file);
std::vector<JsonLine> read_jsonl(const std::filesystem::path& file);

// Returns a document with the fields make(json, where) for each of the first `limit` objects of a
// JSON Lines file.
template <typename Make>
FirstDocuments read_records(const std::filesystem::path& file, const Make& make,
                            int64_t limit = kAllDocuments) {
  return first_documents(JsonLinesReader(file), limit, [&](const JsonLine& record) -> Document {
    return {make(record.json, record.where), record.where};
  });
}

// Return the value of `key`: an array of strings, an array, or an object. Throw UserError if it is
// missing or of another type.
std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where);
const Json& get_array(const Json& json, const std::string& key, const std::string& where);
const Json& get_object(const Json& json, const std::string& key, const std::string& where);

// Returns the source of a record for routing statistics: its "source" if that is a string, else
// `fallback`.
template <typename AnyJson>
std::string get_source(const AnyJson& record, const std::string& fallback) {
  const auto source = record.find("source");
  return source != record.end() && source->is_string() ? source->template get<std::string>()
                                                       : fallback;
}

// A row of comma- or tab-separated values. Quoted fields may contain separators, doubled quotes and
// line feeds.
struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // file and first line of the row
};

// Reader of the rows of a CSV file. Skips blank lines.
class CsvReader {
 public:
  // `quotes`: fields may be quoted. Throws the UserErrors of LineReader.
  explicit CsvReader(const std::filesystem::path& file, char separator = ',', bool quotes = true)
      : lines_(file), separator_(separator), quotes_(quotes) {}

  // Returns the fields of the first row. next() then requires rows of this number of fields.
  std::vector<std::string> read_header();
  // Returns the next row; nullopt at the end of the file. Throws UserError, naming the line, if a
  // quote is not closed, text follows a closing quote, or the number of fields is not the header's.
  std::optional<CsvRow> next();
  // Returns the number of remaining rows, without checking their numbers of fields.
  int64_t count_rest();

 private:
  std::optional<CsvRow> read_row();  // does not check the number of fields
  std::string read_field();
  std::string read_quoted();

  LineReader lines_;
  char separator_;
  bool quotes_;
  size_t header_fields_ = 0;  // number of fields of the header; 0: no header
  Line line_;                 // current line
  size_t at_ = 0;             // byte offset in line_
};

// Returns all rows of a CSV file, including a header.
std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator = ',',
                             bool quotes = true);

// A field of a Hub data set.
struct Field {
  enum class Kind {
    kText,
    kInt,
    kLabel,        // 0 .. names.size() - 1; files may have a name, or true or false, instead
    kTexts,        // ["..", ..]
    kSortedTexts,  // as kTexts; duplicates are removed
    kChoices,      // {"text": [..], "label": [..]}, equal lengths, at least 1
    kAnswers,      // {"choices": [..], "labels": [0 or 1, ..]}, equal lengths, at least 1
    kAny,          // any type; null if missing
  };
  std::string name;
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // names of the values of a label
};
using Schema = std::vector<Field>;

// Reads JSON lines, Parquet, or a .csv file with a header and lists as Python or numpy print them.
// Returns documents with the fields of `schema`, in its order, and labels as numbers. Throws
// UserError if a field is missing, has another type, or is an invalid label.
FirstDocuments read_exported(const std::filesystem::path& file, const Schema& schema,
                             int64_t limit = kAllDocuments);

// Returns the label `field` of `record` as a number. The record may have a number, a boolean or a
// name. Throws UserError if the label is missing or invalid.
int64_t get_label(const Json& record, const Field& field, const std::string& where);

}  // namespace moe::eval
