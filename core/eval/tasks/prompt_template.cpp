#include "core/eval/tasks/prompt_template.h"

#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/metrics/filters.h"

namespace moe::eval {

namespace {

using Texts = std::vector<std::string>;

template <typename Entry>
const Entry& find_entry(const std::map<std::string, Entry>& table, const std::string& name) {
  const auto found = table.find(name);
  MOE_CHECK(found != table.end(), "a task file names '{}'", name);
  return found->second;
}

}  // namespace

PromptTemplate::PromptTemplate(const std::string& text)
    : template_(text, fmt::format("'{}'", printable(text)), jinja::Dialect::kTask) {}

jinja::Value PromptTemplate::evaluate(const OrderedJson& document) const {
  const jinja::Value fields =
      jinja::make_value(document.is_object() ? document : OrderedJson::object(), 0);
  if (const jinja::Value* field = fields.dict()->find(jinja::Value(template_.source()))) {
    return *field;
  }
  try {
    return template_.evaluate(*fields.dict());
  } catch (const UserError& error) {
    std::vector<std::string> known;
    for (const auto& item : document.items()) {
      known.push_back(item.key());
    }
    throw UserError("{}; the document has {}", error.what(),
                    printable(fmt::format("{}", fmt::join(known, ", "))));
  }
}

// Returns `value` as text or as JSON. Throws UserError if it has no such form.
std::string PromptTemplate::convert(const jinja::Value& value, bool to_json) const {
  try {
    return (to_json ? jinja::to_json(value, {}) : jinja::to_text(value)).utf8();
  } catch (const jinja::Fault& fault) {
    throw UserError("'{}': {}", printable(template_.source()), fault.message);
  }
}

std::string PromptTemplate::operator()(const OrderedJson& document) const {
  return convert(evaluate(document), /*to_json=*/false);
}

OrderedJson PromptTemplate::value(const OrderedJson& document) const {
  const jinja::Value result = evaluate(document);
  return result.text() != nullptr
             ? OrderedJson(result.text()->utf8())
             : parse_ordered_json(convert(result, /*to_json=*/true), template_.source());
}

DocumentReader find_document_reader(const std::string& name, const Schema& schema) {
  static const std::map<std::string, DocumentReader> readers = {
      {"arc", read_arc},
      {"bbh", read_bbh},
      {"bbh_prompts", read_bbh_prompts},
      {"commonsense_qa", read_commonsense_qa},
      {"hellaswag", read_hellaswag},
      {"lambada", read_lambada},
      {"lambada_text", read_lambada_text},
      {"logiqa", read_logiqa},
      {"mmlu", read_mmlu},
      {"multirc", read_multirc},
      {"openbookqa", read_openbookqa},
      {"piqa", read_piqa},
      {"record", read_record},
      {"truthfulqa", read_truthfulqa},
      {"winogrande", read_winogrande},
      {"wsc", read_wsc},
  };
  if (name == "fields") {
    return [schema](const Files& files, int64_t limit) {
      return read_exported(files.at(0), schema, limit);
    };
  }
  return find_entry(readers, name);
}

std::function<std::string(const std::string&, const OrderedJson&)> extraction(const Json& setting) {
  using Extract = std::string (*)(const std::string&, const OrderedJson&);
  static const std::map<std::string, Extract> extracts = {{"brackets", first_brackets},
                                                          {"number", first_number},
                                                          {"option", first_option},
                                                          {"sorted_words", sorted_words}};
  if (setting.is_string()) {
    return find_entry(extracts, setting.get<std::string>());
  }
  if (setting.contains("words")) {
    return [words = setting.at("words").get<Texts>()](
               const std::string& answer, const OrderedJson&) { return first_word(answer, words); };
  }
  std::vector<Phrases> groups;
  for (const auto& group : setting.at("phrases")) {
    const auto texts = group.get<Texts>();
    groups.push_back({texts.at(0), {texts.begin() + 1, texts.end()}});
  }
  return [groups = std::move(groups)](const std::string& answer, const OrderedJson&) {
    return first_phrase(answer, groups);
  };
}

}  // namespace moe::eval
