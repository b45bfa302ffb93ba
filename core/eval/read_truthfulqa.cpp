// TruthfulQA's mc_task.json: answers are the keys of objects, so their order is read as it stands.
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"

namespace moe::eval {
namespace {

OrderedJson read_answers(const OrderedJson& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_object() || found->empty()) {
    throw UserError("{}: '{}' is missing or no object of answers with 1 or 0", where, key);
  }
  OrderedJson choices = OrderedJson::array(), labels = OrderedJson::array();
  for (const auto& [answer, label] : found->items()) {
    if (label != 0 && label != 1) {
      throw UserError("{}: '{}' gives '{}' the label {}, it must be 0 or 1", where, key,
                      printable(answer), printable(label.dump()));
    }
    choices.push_back(answer);
    labels.push_back(label);
  }
  return {{"choices", std::move(choices)}, {"labels", std::move(labels)}};
}

}  // namespace

std::vector<Document> read_truthfulqa(const Files& files) {
  const std::string file = files.at(0).string();
  const std::string text = read_text(files.at(0));
  if (!parse_json(text, file).is_array()) {  // the strict reader; keys keep their order below
    throw UserError("{}: not a JSON array of questions", file);
  }
  std::vector<Document> documents;
  for (const auto& entry : OrderedJson::parse(text)) {
    const std::string where = fmt::format("{} question {}", file, documents.size() + 1);
    if (!entry.is_object() || !entry.contains("question") || !entry["question"].is_string()) {
      throw UserError("{}: 'question' is missing or no string", where);
    }
    documents.push_back({{{"question", entry["question"]},
                          {"mc1_targets", read_answers(entry, "mc1_targets", where)},
                          {"mc2_targets", read_answers(entry, "mc2_targets", where)}},
                         where});
  }
  return documents;
}

}  // namespace moe::eval
