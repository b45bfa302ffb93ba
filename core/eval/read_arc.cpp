// ARC, Easy and Challenge, and CommonsenseQA: JSON lines with a stem, labelled choices (A-E or 1-5)
// and the label of the right one.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"

namespace moe::eval {
namespace {

Document read_question(const Json& json, const std::string& where, bool has_concept) {
  const Json& question = get_object(json, "question", where);
  OrderedJson texts = OrderedJson::array();
  std::vector<std::string> labels;
  for (const Json& choice : get_array(question, "choices", where)) {
    if (!choice.is_object()) {
      throw UserError("{}: a choice is not an object with 'text' and 'label'", where);
    }
    texts.push_back(get_string(choice, "text", where));
    labels.push_back(get_string(choice, "label", where));
  }
  const std::string key = get_string(json, "answerKey", where);
  if (std::find(labels.begin(), labels.end(), key) == labels.end()) {
    throw UserError("{}: answerKey '{}' is none of the labels {}", where, printable(key),
                    Json(labels).dump());
  }
  OrderedJson fields = {{"id", get_string(json, "id", where, "")},
                        {"question", get_string(question, "stem", where)}};
  if (has_concept) {
    fields["question_concept"] = get_string(question, "question_concept", where);
  }
  fields["choices"] = {{"text", std::move(texts)}, {"label", labels}};
  fields["answerKey"] = key;
  return {std::move(fields), where};
}

std::vector<Document> read_questions(const Files& files, bool has_concept) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    documents.push_back(read_question(json, where, has_concept));
  }
  return documents;
}

}  // namespace

std::vector<Document> read_arc(const Files& files) { return read_questions(files, false); }

std::vector<Document> read_commonsense_qa(const Files& files) {
  return read_questions(files, true);
}

}  // namespace moe::eval
