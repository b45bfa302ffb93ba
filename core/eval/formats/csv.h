#pragma once
// Comma- or tab-separated values: quoted fields may hold separators, doubled quotes and line feeds.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/formats/lines.h"

namespace moe::eval {

struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // file and the line it begins on
};

// The rows of a file one after the other, blank lines skipped.
class CsvReader {
 public:
  // `quotes`: whether fields may be quoted. UserError as LineReader.
  explicit CsvReader(const std::filesystem::path& file, char separator = ',', bool quotes = true)
      : lines_(file), separator_(separator), quotes_(quotes) {}

  // UserError with the line: a quote that is never closed, or text after a closing quote.
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

// Rows under a header.
class CsvTable {
 public:
  explicit CsvTable(const std::filesystem::path& file, char separator = ',');

  const std::vector<std::string>& header() const { return header_; }
  // UserError: more or fewer fields than the header names, and what CsvReader says.
  std::optional<CsvRow> next();
  int64_t count_rest();  // rows that follow

 private:
  CsvReader rows_;
  std::vector<std::string> header_;
};

// All rows of CsvReader.
std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator = ',',
                             bool quotes = true);

}  // namespace moe::eval
