// Files of texts to be completed: HellaSwag, WinoGrande and LAMBADA.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

// HellaSwag: the start of a scene and four endings. The harness cleans both of WikiHow's marks.
namespace {

// re.sub(r"\[.*?\]", "", text): from a bracket to the nearest closing one; a dot does not match a
// line feed.
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

int64_t hellaswag_label(const Json& json, const std::string& where) {
  const auto label = json.find("label");
  const std::string text = label == json.end()  ? ""
                           : label->is_string() ? label->get<std::string>()
                                                : label->dump();
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') {
    throw UserError(
        "{}: 'label' must be 0 to 3, not '{}'; the test split has no answers, use the validation "
        "split",
        where, printable(text));
  }
  return text[0] - '0';
}

Document hellaswag_scene(const Json& json, const std::string& where) {
  const std::vector<std::string> endings = get_strings(json, "endings", where);
  if (endings.size() != 4) {
    throw UserError("{}: {} endings, HellaSwag has 4 a scene", where, endings.size());
  }
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
  fields["label"] = std::to_string(hellaswag_label(json, where));
  return {std::move(fields), where};
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
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    documents.push_back(hellaswag_scene(json, where));
  }
  return documents;
}

// WinoGrande and LAMBADA: a word is missing.
namespace {

OrderedJson authors_winogrande(const Json& json, const std::string& where) {
  OrderedJson fields;
  for (const char* key : {"sentence", "option1", "option2", "answer"}) {
    fields[key] = get_string(json, key, where);
  }
  return fields;
}

OrderedJson foundry_winogrande(const Json& json, const std::string& where) {
  const std::vector<std::string> options = get_strings(json, "context_options", where);
  const int64_t gold = get_int(json, "gold", where);
  if (options.size() != 2) {
    throw UserError("{}: {} 'context_options', WinoGrande has 2", where, options.size());
  }
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

void check_winogrande(const OrderedJson& fields, const std::string& where) {
  if (fields["answer"] != "1" && fields["answer"] != "2") {
    throw UserError("{}: 'answer' must be 1 or 2, not {}; a split without answers cannot be scored",
                    where, printable(fields["answer"].dump()));
  }
  if (fields["sentence"].get<std::string>().find('_') == std::string::npos) {
    throw UserError("{}: 'sentence' has no blank, an underscore", where);
  }
}

}  // namespace

std::vector<Document> read_winogrande(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    OrderedJson fields = json.contains("context_options") ? foundry_winogrande(json, where)
                                                          : authors_winogrande(json, where);
    check_winogrande(fields, where);
    documents.push_back({std::move(fields), where});
  }
  return documents;
}

std::vector<Document> read_lambada(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    if (json.contains("text")) {
      documents.push_back({{{"text", get_string(json, "text", where)}}, where});
      continue;
    }
    const std::string last = get_string(json, "continuation", where);
    const bool has_space = last.size() != left_strip(last).size();
    documents.push_back(
        {{{"text", get_string(json, "context", where) + (has_space ? "" : " ") + last}}, where});
  }
  return documents;
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

}  // namespace moe::eval
