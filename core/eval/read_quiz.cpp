// One's own multiple-choice questions: a JSON object a line, the answer given the way it is at
// hand.
#include <algorithm>

#include "core/base/error.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"
#include "core/eval/text.h"

namespace moe::eval {
namespace {

int64_t answer_index(const Json& json, const std::vector<std::string>& choices,
                     const std::string& where) {
  const auto answer = json.find("answer");
  const auto count = static_cast<int64_t>(choices.size());
  if (answer == json.end()) {
    throw UserError(
        "{}: 'answer' is missing: the index of a choice from 0, its text, or its letter", where);
  }
  int64_t index = -1;
  if (answer->is_number_integer()) {
    index = answer->is_number_unsigned() && answer->get<uint64_t>() > 1000000
                ? -1
                : answer->get<int64_t>();
  } else if (answer->is_string()) {
    const auto text = answer->get<std::string>();
    const auto same = std::find(choices.begin(), choices.end(), text);
    const std::string letter = strip(text);
    if (same != choices.end()) {
      index = same - choices.begin();
    } else if (letter.size() == 1 && letter[0] >= 'A' && letter[0] <= 'Z') {
      index = letter[0] - 'A';
    } else if (letter.size() == 1 && letter[0] >= 'a' && letter[0] <= 'z') {
      index = letter[0] - 'a';
    }
  }
  if (index < 0 || index >= count) {
    throw UserError(
        "{}: answer {} is none of the {} choices: give an index from 0 to {}, a letter, or a "
        "choice's text",
        where, answer->dump(), count, count - 1);
  }
  return index;
}

Document read_question(const Json& json, const std::string& where) {
  const bool has_question = json.contains("question");
  if (has_question == json.contains("context")) {
    throw UserError(
        "{}: give either 'question' (asked as 'Question: ..') or 'context' (the full prompt){}",
        where, has_question ? ", not both" : "");
  }
  const char* const key = has_question ? "question" : "context";
  const std::string text = get_string(json, key, where);
  const std::vector<std::string> choices = get_strings(json, "choices", where);
  if (choices.size() < 2) {
    throw UserError("{}: {} in 'choices', at least 2 are needed", where,
                    choices.empty() ? "nothing" : "one choice");
  }
  const int64_t gold = answer_index(json, choices, where);
  OrderedJson fields = {
      {key, text}, {"choices", choices}, {"answer", OrderedJson(json["answer"])}, {"gold", gold}};
  if (const std::string source = source_of(json, ""); !source.empty()) {
    fields["source"] = source;
  }
  return {std::move(fields), where};
}

}  // namespace

std::vector<Document> read_quiz(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    documents.push_back(read_question(json, where));
  }
  return documents;
}

}  // namespace moe::eval
