// SuperGLUE's nested files. The Hub flattens them: so do we.
#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/schema.h"
#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

const Json& check_object(const Json& json, const std::string& what, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: {} is no object", where, what);
  }
  return json;
}

OrderedJson sorted(const std::set<std::string>& texts) {
  return std::vector<std::string>(texts.begin(), texts.end());
}

// Entities are [start, end] in characters, end included.
OrderedJson entities_of(const Json& passage, const std::string& text, const std::string& where) {
  std::set<std::string> entities;
  for (const Json& entity : get_array(passage, "entities", where)) {
    check_object(entity, "an entity", where);
    const int64_t start = get_int(entity, "start", where), end = get_int(entity, "end", where);
    if (start < 0 || end < start || end >= count_code_points(text)) {
      throw UserError("{}: an entity from {} to {}, the passage has {} characters", where, start,
                      end, count_code_points(text));
    }
    entities.insert(slice(text, start, end + 1));
  }
  return sorted(entities);
}

OrderedJson answers_of(const Json& query, const OrderedJson& entities, const std::string& where) {
  std::set<std::string> answers;
  for (const Json& answer : get_array(query, "answers", where)) {
    answers.insert(get_string(check_object(answer, "an answer", where), "text", where));
  }
  if (answers.empty() || entities.empty()) {
    throw UserError(
        "{}: a query with {} entities and {} answers; a split without answers cannot "
        "be scored",
        where, entities.size(), answers.size());
  }
  return sorted(answers);
}

// The Hub's repair of a span that is not in the text: the case of the text's word at its index, no
// last full stop, no line feed. Its "they scold" changes the index alone.
void fix_span(OrderedJson& fields, const std::string& span) {
  const auto text = fields["text"].get<std::string>();
  auto words = fields[span + "_text"].get<std::string>();
  const std::vector<std::string> all = split_words(text);
  const auto index = static_cast<size_t>(fields[span + "_index"].get<int64_t>());
  if (text.find(words) != std::string::npos || words == "Kamenev and Zinoviev" ||
      words == "Kamenev, Zinoviev, and Stalin" || index >= all.size()) {
    return;
  }
  if (words.find("theyscold") != std::string::npos) {
    fields["span2_index"] = 10;
  }
  const std::string first = slice(all[index], 0, 1), begin = slice(words, 0, 1);
  const bool is_lower = lower(first) == first && capitalize(first) != first;
  words = (is_lower ? lower(begin) : capitalize(begin)) + slice(words, 1);
  while (words.ends_with('.')) {
    words.pop_back();
  }
  fields[span + "_text"] = replace_all(words, "\n", " ");
}

}  // namespace

std::vector<Document> read_multirc(const Files& files) {
  const Field label{"label", Field::Kind::kLabel, {"False", "True"}};
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    const Json& passage = get_object(json, "passage", where);
    for (const Json& question : get_array(passage, "questions", where)) {
      check_object(question, "a question", where);
      for (const Json& answer : get_array(question, "answers", where)) {
        check_object(answer, "an answer", where);
        if (!answer.contains("label")) {
          throw UserError("{}: an answer has no 'label'; a split without answers cannot be scored",
                          where);
        }
        documents.push_back({{{"paragraph", get_string(passage, "text", where)},
                              {"question", get_string(question, "question", where)},
                              {"answer", get_string(answer, "text", where)},
                              {"idx",
                               {{"paragraph", get_int(json, "idx", where, 0)},
                                {"question", get_int(question, "idx", where, 0)},
                                {"answer", get_int(answer, "idx", where, 0)}}},
                              {"label", label_of(answer["label"], label, where)}},
                             where});
      }
    }
  }
  return documents;
}

std::vector<Document> read_record(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    const Json& passage = get_object(json, "passage", where);
    const std::string text = get_string(passage, "text", where);
    const OrderedJson entities = entities_of(passage, text, where);
    for (const Json& query : get_array(json, "qas", where)) {
      check_object(query, "a query", where);
      documents.push_back({{{"passage", text},
                            {"query", get_string(query, "query", where)},
                            {"entities", entities},
                            {"answers", answers_of(query, entities, where)},
                            {"idx",
                             {{"passage", get_int(json, "idx", where, 0)},
                              {"query", get_int(query, "idx", where, 0)}}}},
                           where});
    }
  }
  return documents;
}

std::vector<Document> read_wsc(const Files& files) {
  const Field label{"label", Field::Kind::kLabel, {"False", "True"}};
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    const Json& target = get_object(json, "target", where);
    OrderedJson fields = {{"text", get_string(json, "text", where)}};
    for (const char* key : {"span1_index", "span2_index"}) {
      fields[key] = get_int(target, key, where);
      if (fields[key] < 0) {
        throw UserError("{}: '{}' is {}, it counts words from 0", where, key, fields[key].dump());
      }
    }
    for (const char* key : {"span1_text", "span2_text"}) {
      fields[key] = get_string(target, key, where);
    }
    if (!json.contains("label")) {
      throw UserError("{}: 'label' is missing; a split without answers cannot be scored", where);
    }
    fix_span(fields, "span1");
    fix_span(fields, "span2");
    fields["idx"] = get_int(json, "idx", where, 0);
    fields["label"] = label_of(json["label"], label, where);
    documents.push_back({std::move(fields), where});
  }
  return documents;
}

}  // namespace moe::eval
