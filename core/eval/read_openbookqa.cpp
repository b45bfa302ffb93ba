// OpenBookQA: tab-separated, the four choices in one field.
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/csv.h"
#include "core/eval/formats.h"
#include "core/eval/text.h"

namespace moe::eval {
namespace {

// "(A) one (B) two (C) three (D) four" -> the four texts.
OrderedJson split_choices(const std::string& text, const std::string& where) {
  OrderedJson choices = OrderedJson::array();
  size_t begin = 0;
  for (const char letter : {'A', 'B', 'C', 'D', '\0'}) {
    const std::string mark = fmt::format("({})", letter);
    const size_t end = letter == '\0' ? text.size() : text.find(mark, begin);
    if (end == std::string::npos) {
      throw UserError("{}: the choices lack {}: '{}'", where, mark, printable(text));
    }
    if (letter != 'A') {
      choices.push_back(strip(text.substr(begin, end - begin)));
    }
    begin = end + mark.size();
  }
  return choices;
}

}  // namespace

std::vector<Document> read_openbookqa(const Files& files) {
  const std::vector<CsvRow> rows = read_csv(files.at(0), '\t', /*quotes=*/false);
  std::vector<Document> documents;
  for (size_t row = 1; row < rows.size(); ++row) {
    const auto& [fields, where] = rows[row];
    if (fields.size() != 5) {
      throw UserError(
          "{}: {} fields, 5 are needed (ID, stem, choices, complete question, key); is "
          "the line cut?",
          where, fields.size());
    }
    const std::string key = strip(fields[4]);
    if (key.size() != 1 || key[0] < 'A' || key[0] > 'D') {
      throw UserError("{}: the right answer must be a letter from A to D, not '{}'", where,
                      printable(key));
    }
    documents.push_back(
        {{{"id", fields[0]},
          {"question_stem", fields[1]},
          {"choices", {{"text", split_choices(fields[2], where)}, {"label", {"A", "B", "C", "D"}}}},
          {"answerKey", key}},
         where});
  }
  return documents;
}

}  // namespace moe::eval
