// MMLU: CSV without a header, a file a subject.
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/csv.h"
#include "core/eval/formats.h"

namespace moe::eval {

std::vector<Document> read_mmlu(const Files& files, const std::string& subject) {
  std::vector<Document> documents;
  for (const auto& [fields, where] : read_csv(files.at(0))) {
    if (fields.size() != 6) {
      throw UserError(
          "{}: {} fields, MMLU has 6 (question, four choices, letter); is the line cut?", where,
          fields.size());
    }
    const std::string& letter = fields[5];
    if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D') {
      throw UserError("{}: the right answer must be a letter from A to D, not '{}'", where,
                      printable(letter));
    }
    documents.push_back({{{"question", fields[0]},
                          {"subject", subject},
                          {"choices", {fields[1], fields[2], fields[3], fields[4]}},
                          {"answer", letter[0] - 'A'}},
                         where});
  }
  return documents;
}

}  // namespace moe::eval
