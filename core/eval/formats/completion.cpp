// Readers of benchmarks with texts to complete (HellaSwag, WinoGrande, LAMBADA), and of the nested
// files of BIG-Bench-Hard and SuperGLUE.

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

// re.sub(r"\[.*?\]", "", text); a dot does not match a line feed.
std::string remove_brackets(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t end = text[i] == '[' ? text.find_first_of("]\n", i) : std::string::npos;
    if (end != std::string::npos && text[end] == ']') {
      i = end + 1;
    } else {
      result += text[i++];
    }
  }
  return result;
}

OrderedJson hellaswag_fields(const Json& json, const std::string& where) {
  const std::vector<std::string> endings = get_strings(json, "endings", where);
  USER_ERROR_IF(endings.size() != 4, "{}: 'endings' must have 4 entries, not {}", where,
                endings.size());
  OrderedJson fields;
  fields["ind"] = get_int(json, "ind", where, 0);
  for (const char* key : {"activity_label", "ctx_a", "ctx_b"}) {
    fields[key] = get_string(json, key, where);
  }
  fields["ctx"] = get_string(json, "ctx", where, "");
  fields["endings"] = endings;
  for (const char* key : {"source_id", "split", "split_type"}) {
    fields[key] = get_string(json, key, where, "");
  }
  const Field label{"label", Field::Kind::kLabel, {"0", "1", "2", "3"}};
  fields["label"] = std::to_string(get_label(json, label, where));
  return fields;
}

OrderedJson winogrande_fields(const Json& json, const std::string& where) {
  if (!json.contains("context_options")) {
    OrderedJson fields;
    for (const char* key : {"sentence", "option1", "option2", "answer"}) {
      fields[key] = get_string(json, key, where);
    }
    return fields;
  }
  const std::vector<std::string> options = get_strings(json, "context_options", where);
  const int64_t gold = get_int(json, "gold", where);
  USER_ERROR_IF(options.size() != 2, "{}: 'context_options' must have 2 entries, not {}", where,
                options.size());
  const auto [first, second] =
      std::mismatch(options[0].begin(), options[0].end(), options[1].begin(), options[1].end());
  const auto common = static_cast<size_t>(first - options[0].begin());
  const size_t space = common == 0 ? std::string::npos : options[0].rfind(' ', common - 1);
  const size_t cut = space == std::string::npos ? 0 : space + 1;
  return {{"sentence", options[0].substr(0, cut) + "_ " + get_string(json, "continuation", where)},
          {"option1", options[0].substr(cut)},
          {"option2", options[1].substr(cut)},
          {"answer", std::to_string(gold + 1)}};
}

const Field kLabel{"label", Field::Kind::kLabel, {"False", "True"}};

// Returns the entities of a passage, which the file stores as the indices of their first and last
// characters.
OrderedJson record_entities(const Json& passage, const std::string& text,
                            const std::string& where) {
  std::set<std::string> entities;
  for (const Json& entity : get_array(passage, "entities", where)) {
    const int64_t start = get_int(entity, "start", where), end = get_int(entity, "end", where);
    USER_ERROR_IF(start < 0 || end < start || end >= count_code_points(text),
                  "{}: an entity from {} to {}, but the passage has {} characters", where, start,
                  end, count_code_points(text));
    entities.insert(slice(text, start, end + 1));
  }
  return entities;
}

OrderedJson record_answers(const Json& query, const OrderedJson& entities,
                           const std::string& where) {
  std::set<std::string> answers;
  for (const Json& answer : get_array(query, "answers", where)) {
    answers.insert(get_string(answer, "text", where));
  }
  USER_ERROR_IF(answers.empty() || entities.empty(),
                "{}: a query with {} entities and {} answers; use a split with answers", where,
                entities.size(), answers.size());
  return answers;
}

// Corrects a span that does not occur in the text, as in the Hub's "wsc.fixed": sets its first
// letter to the case of the word at its index, removes trailing full stops and replaces line feeds.
// For "theyscold" also corrects the index.
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

std::string preprocess_hellaswag(std::string_view text) {
  const std::string titled = replace_all(strip(text), " [title]", ". ");
  return replace_all(remove_brackets(titled), "  ", " ");
}

void process_hellaswag(OrderedJson& fields) {
  const auto text = [&](const char* key) { return fields.at(key).get<std::string>(); };
  fields["query"] = preprocess_hellaswag(text("activity_label") + ": " + text("ctx_a") + " " +
                                         capitalize(text("ctx_b")));
  fields["choices"] = OrderedJson::array();
  for (const auto& ending : fields.at("endings")) {
    fields["choices"].push_back(preprocess_hellaswag(ending.get<std::string>()));
  }
  fields["gold"] = text("label")[0] - '0';
}

std::vector<Document> read_hellaswag(const Files& files) {
  return read_records(files.at(0), hellaswag_fields).documents;
}

std::vector<Document> read_winogrande(const Files& files) {
  return read_records(files.at(0), winogrande_fields).documents;
}

std::vector<Document> read_lambada(const Files& files) {
  const auto fields = [](const Json& json, const std::string& where) -> OrderedJson {
    if (json.contains("text")) {
      return {{"text", get_string(json, "text", where)}};
    }
    const std::string last = get_string(json, "continuation", where);
    const bool has_space = last.size() != left_strip(last).size();
    return {{"text", get_string(json, "context", where) + (has_space ? "" : " ") + last}};
  };
  return read_records(files.at(0), fields).documents;
}

std::vector<Document> read_lambada_text(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [text, where] : read_lines(files.at(0))) {
    if (!strip(text).empty()) {
      documents.push_back({{{"text", text}}, where});
    }
  }
  return documents;
}

std::vector<Document> read_bbh(const Files& files) {
  const std::string file = files.at(0).string();
  const Json json = parse_json(read_text(files.at(0)), file);
  std::vector<Document> documents;
  for (const Json& example : get_array(json, "examples", file)) {
    const std::string where = fmt::format("{} example {}", file, documents.size() + 1);
    documents.push_back({{{"input", get_string(example, "input", where)},
                          {"target", get_string(example, "target", where)}},
                         where});
  }
  return documents;
}

std::vector<Document> read_bbh_prompts(const Files& files) {
  const std::string kQuestion = "\nQ: ", kAnswer = "\nA: ", kResult = "o the answer is ";
  const std::string file = files.at(0).string();
  const std::string text = read_text(files.at(0));
  std::vector<Document> documents;
  for (size_t at = text.find(kQuestion); at != std::string::npos;) {
    const size_t next = text.find(kQuestion, at + 1);
    const std::string where = fmt::format("{} example {}", file, documents.size() + 1);
    const std::string block = text.substr(at, next == std::string::npos ? next : next - at);
    const size_t answer = block.find(kAnswer), result = block.rfind(kResult);
    USER_ERROR_IF(answer == std::string::npos || result == std::string::npos || result < answer,
                  "{}: 'Q: ' without 'A: ' and 'So the answer is '; is the file truncated?", where);
    std::string target = strip(block.substr(result + kResult.size()));
    target.erase(target.size() - (target.ends_with('.') ? 1 : 0));
    documents.push_back(
        {{{"input", block.substr(kQuestion.size(), answer - kQuestion.size())}, {"target", target}},
         where});
    at = next;
  }
  return documents;
}

std::vector<Document> read_multirc(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    const Json& passage = get_object(json, "passage", where);
    for (const Json& question : get_array(passage, "questions", where)) {
      for (const Json& answer : get_array(question, "answers", where)) {
        documents.push_back({{{"paragraph", get_string(passage, "text", where)},
                              {"question", get_string(question, "question", where)},
                              {"answer", get_string(answer, "text", where)},
                              {"idx",
                               {{"paragraph", get_int(json, "idx", where, 0)},
                                {"question", get_int(question, "idx", where, 0)},
                                {"answer", get_int(answer, "idx", where, 0)}}},
                              {"label", get_label(answer, kLabel, where)}},
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
    const OrderedJson entities = record_entities(passage, text, where);
    for (const Json& query : get_array(json, "qas", where)) {
      documents.push_back({{{"passage", text},
                            {"query", get_string(query, "query", where)},
                            {"entities", entities},
                            {"answers", record_answers(query, entities, where)},
                            {"idx",
                             {{"passage", get_int(json, "idx", where, 0)},
                              {"query", get_int(query, "idx", where, 0)}}}},
                           where});
    }
  }
  return documents;
}

std::vector<Document> read_wsc(const Files& files) {
  const auto make_fields = [](const Json& json, const std::string& where) {
    const Json& target = get_object(json, "target", where);
    OrderedJson fields = {{"text", get_string(json, "text", where)}};
    for (const char* key : {"span1_index", "span2_index"}) {
      fields[key] = get_int(target, key, where);
      USER_ERROR_IF(fields[key] < 0, "{}: '{}' must be the index of a word, not {}", where, key,
                    fields[key].dump());
    }
    for (const char* key : {"span1_text", "span2_text"}) {
      fields[key] = get_string(target, key, where);
    }
    fix_span(fields, "span1");
    fix_span(fields, "span2");
    fields["idx"] = get_int(json, "idx", where, 0);
    fields["label"] = get_label(json, kLabel, where);
    return fields;
  };
  return read_records(files.at(0), make_fields).documents;
}

}  // namespace moe::eval
