// One pass, one state: in a quoted field or not. A row is a line, and more where quotes hold line
// feeds.
#include "core/eval/formats/csv.h"

#include "core/base/error.h"

namespace moe::eval {

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
