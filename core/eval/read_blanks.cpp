// WinoGrande and LAMBADA: a word is missing.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"
#include "core/eval/text.h"

namespace moe::eval {
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
