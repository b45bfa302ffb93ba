// ARC, Easy and Challenge: JSON lines with a stem, labelled choices (A-E or 1-5) and the label of
// the right one.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"

namespace moe::eval {
namespace {

const Json& get_member(const Json& json,
                       const char* key,
                       Json::value_t type,
                       const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || found->type() != type) {
    throw UserError("{}: '{}' is missing or not {}",
                    where,
                    key,
                    type == Json::value_t::array ? "an array" : "an object");
  }
  return *found;
}

Document read_question(const Json& json, const std::string& where) {
  const Json& question = get_member(json, "question", Json::value_t::object, where);
  OrderedJson texts = OrderedJson::array();
  std::vector<std::string> labels;
  for (const Json& choice : get_member(question, "choices", Json::value_t::array, where)) {
    if (!choice.is_object()) {
      throw UserError("{}: a choice is not an object with 'text' and 'label'", where);
    }
    texts.push_back(get_string(choice, "text", where));
    labels.push_back(get_string(choice, "label", where));
  }
  const std::string key = get_string(json, "answerKey", where);
  if (std::find(labels.begin(), labels.end(), key) == labels.end()) {
    throw UserError(
        "{}: answerKey '{}' is none of the labels {}", where, printable(key), Json(labels).dump());
  }
  return {{{"id", get_string(json, "id", where, "")},
           {"question", get_string(question, "stem", where)},
           {"choices", {{"text", std::move(texts)}, {"label", labels}}},
           {"answerKey", key}},
          where};
}

}  // namespace

std::vector<Document> read_arc(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    documents.push_back(read_question(json, where));
  }
  return documents;
}

}  // namespace moe::eval
