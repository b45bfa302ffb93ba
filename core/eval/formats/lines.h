#pragma once
// Text files of benchmarks, read whole or line by line and checked: UTF-8, a byte-order mark and
// Windows newlines tolerated.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/read_file.h"

namespace moe::eval {

struct Line {
  std::string text;
  std::string where;  // "piqa/valid.jsonl line 7"
};

// The lines of a text file one after the other, blank ones included, without byte-order mark and
// line ends; no line after the last newline. One line is in memory, so a file may be long.
class LineReader {
 public:
  // "-" reads standard input. UserError: missing, a folder, larger than 1 GiB, not readable.
  explicit LineReader(const std::filesystem::path& file);

  // UserError: not UTF-8 (the line is named), and at the end when all lines were blank.
  std::optional<Line> next();
  // Reads to the end and counts the lines that are not blank; what they say is not looked at.
  int64_t count_rest();

 private:
  bool read_line(std::string& text);

  std::string name_;
  std::unique_ptr<FileReader> file_;
  int64_t line_ = 0;    // lines read so far
  uint64_t bytes_ = 0;  // of these lines
  bool all_blank_ = true;
};

// The text of `file` without byte-order mark, "\r\n" rewritten into "\n". UserError as LineReader.
std::string read_text(const std::filesystem::path& file);

// Every line of `file`. UserError as LineReader.
std::vector<Line> read_lines(const std::filesystem::path& file);

struct JsonLine {
  Json json;  // an object
  std::string where;
};

// One JSON object a line; blank lines are skipped.
class JsonLinesReader {
 public:
  explicit JsonLinesReader(const std::filesystem::path& file) : lines_(file) {}

  // UserError names file and line.
  std::optional<JsonLine> next();
  int64_t count_rest() { return lines_.count_rest(); }  // records that follow, unread

 private:
  LineReader lines_;
};

// All records of JsonLinesReader.
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

// A row of comma- or tab-separated values. Quoted fields may hold separators, doubled quotes and
// line feeds.
struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // file and the line it begins on
};

// Reads the rows of a file one by one; skips blank lines.
class CsvReader {
 public:
  // `quotes`: true if fields may be quoted. Throws what LineReader throws.
  explicit CsvReader(const std::filesystem::path& file, char separator = ',', bool quotes = true)
      : lines_(file), separator_(separator), quotes_(quotes) {}

  // Throws UserError with the line: a quote that is never closed, or text after a closing quote.
  std::optional<CsvRow> next();

 private:
  std::string read_field();
  std::string read_quoted();

  LineReader lines_;
  char separator_;
  bool quotes_;
  Line line_;      // the one that is read
  size_t at_ = 0;  // in it
};

// Reads rows under a header.
class CsvTable {
 public:
  explicit CsvTable(const std::filesystem::path& file, char separator = ',');

  const std::vector<std::string>& header() const { return header_; }
  // Throws UserError: more or fewer fields than the header has; and what CsvReader throws.
  std::optional<CsvRow> next();
  int64_t count_rest();  // reads to the end; returns the rows read

 private:
  CsvReader rows_;
  std::vector<std::string> header_;
};

// Returns all rows of `file`.
std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator = ',',
                             bool quotes = true);

}  // namespace moe::eval
