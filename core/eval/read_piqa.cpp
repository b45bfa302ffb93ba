// PIQA: goals with two solutions in one file, the right ones in another, line by line.
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"
#include "core/eval/text.h"

namespace moe::eval {
namespace {

std::vector<int> read_labels(const std::filesystem::path& file) {
  std::vector<int> labels;
  for (const auto& [text, where] : read_lines(file)) {
    const std::string label = strip(text);
    if (label.empty()) {
      continue;
    }
    if (label != "0" && label != "1") {
      throw UserError("{}: a label must be 0 or 1, not '{}'", where, printable(label));
    }
    labels.push_back(label == "1" ? 1 : 0);
  }
  return labels;
}

}  // namespace

std::vector<Document> read_piqa(const Files& files) {
  const std::vector<Record> records = read_jsonl(files.at(0));
  const std::vector<int> labels = read_labels(files.at(1));
  if (records.size() != labels.size()) {
    throw UserError("{} has {} questions, {} has {} labels; one of them is cut, fetch both again",
                    files.at(0).string(), records.size(), files.at(1).string(), labels.size());
  }
  std::vector<Document> documents;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto& [json, where] = records[i];
    documents.push_back({{{"goal", get_string(json, "goal", where)},
                          {"sol1", get_string(json, "sol1", where)},
                          {"sol2", get_string(json, "sol2", where)},
                          {"label", labels[i]}},
                         where});
  }
  return documents;
}

}  // namespace moe::eval
