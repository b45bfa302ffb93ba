// One pass, one state: in a quoted field or not. Lines are counted for messages.
#include "core/eval/formats/csv.h"

#include "core/base/error.h"
#include "core/eval/formats/lines.h"

namespace moe::eval {
namespace {

class CsvReader {
 public:
  CsvReader(std::string file, const std::string& text, char separator, bool quotes)
      : file_(std::move(file)), text_(text), separator_(separator), quotes_(quotes) {}

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (at_ < text_.size()) {
      CsvRow row{{}, where()};
      bool more = true;
      while (more) {
        row.fields.push_back(read_field());
        more = at_ < text_.size() && text_[at_] == separator_;
        at_ += at_ < text_.size() ? 1 : 0;  // over the separator or the line feed
      }
      ++line_;
      if (row.fields.size() > 1 || !row.fields.front().empty()) {
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }

 private:
  std::string where() const { return fmt::format("{} line {}", file_, line_); }

  std::string read_field() {
    if (quotes_ && at_ < text_.size() && text_[at_] == '"') {
      return read_quoted();
    }
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n') {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string read_quoted() {
    const std::string begin = where();
    std::string field;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) {
        throw UserError("{}: a quoted field begins here and never ends; the file is cut", begin);
      }
      if (text_[at_] == '"') {
        if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
          ++at_;
        } else {
          break;
        }
      }
      line_ += text_[at_] == '\n' ? 1 : 0;
      field += text_[at_];
    }
    ++at_;
    if (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n') {
      throw UserError("{}: text after a closing quote; double the quotes inside a field", where());
    }
    return field;
  }

  std::string file_;
  const std::string& text_;
  char separator_;
  bool quotes_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> read_csv(const std::filesystem::path& file, char separator, bool quotes) {
  const std::string text = read_text(file);
  return CsvReader(file.string(), text, separator, quotes).rows();
}

}  // namespace moe::eval
