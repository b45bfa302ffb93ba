#pragma once
// Comma- or tab-separated values: quoted fields may hold separators, doubled quotes and line feeds.

#include <filesystem>
#include <string>
#include <vector>

namespace moe::eval {

struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // file and the line it begins on
};

// Rows of `file`, blank lines skipped. UserError with the line: a quote that is never closed, or
// text after a closing quote. `quotes`: whether fields may be quoted.
std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator = ',',
                             bool quotes = true);

}  // namespace moe::eval
