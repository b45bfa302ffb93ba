#include "core/eval/tasks/prompt_template.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"
#include "core/eval/metrics/filters.h"

namespace moe::eval {

namespace {

using Texts = std::vector<std::string>;

Target logiqa_target(const OrderedJson& document) {
  const std::string label = strip(document.at("label").get<std::string>());
  USER_ERROR_IF(label.size() != 1 || label[0] < 'a' || label[0] > 'd',
                "'label' must be a letter from a to d, not '{}'", label);
  return {label[0] - 'a', ""};
}

// Returns the two contexts: the sentence up to the blank, followed by an option. The text after the
// blank is the target.
Texts winogrande_choices(const OrderedJson& document) {
  const auto sentence = document.at("sentence").get<std::string>();
  const size_t blank = sentence.find('_');
  USER_ERROR_IF(blank == std::string::npos, "'sentence' has no blank, an underscore");
  const std::string begin = sentence.substr(0, blank);
  return {begin + document.at("option1").get<std::string>(),
          begin + document.at("option2").get<std::string>()};
}

Target winogrande_target(const OrderedJson& document) {
  const OrderedJson& answer = document.at("answer");
  USER_ERROR_IF(answer != "1" && answer != "2",
                "'answer' must be 1 or 2, not {}; a split without answers cannot be scored",
                printable(answer.dump()));
  const auto sentence = document.at("sentence").get<std::string>();
  return {answer == "1" ? 0 : 1, strip(sentence.substr(sentence.find('_') + 1))};
}

// LAMBADA: the target is the text after the last space (Python's text.split(' ')[-1]), the prompt
// is the text before it.
std::string lambada_prompt(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  const size_t space = text.rfind(' ');
  return space == std::string::npos ? "" : text.substr(0, space);
}

Target lambada_target(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  return {std::nullopt, " " + text.substr(text.rfind(' ') + 1)};
}

// COPA: the prompt is the premise without its full stop, and a connector. The choices begin with a
// space, so that with the delimiter the continuation begins with two.
Texts copa_choices(const OrderedJson& document) {
  Texts choices;
  for (const char* key : {"choice1", "choice2"}) {
    const auto choice = document.at(key).get<std::string>();
    choices.push_back(" " + lower(slice(choice, 0, 1)) + slice(choice, 1));
  }
  return choices;
}

std::string copa_prompt(const OrderedJson& document) {
  const auto question = document.at("question").get<std::string>();
  USER_ERROR_IF(question != "cause" && question != "effect",
                "'question' must be cause or effect, not '{}'", question);
  const std::string premise = strip(document.at("premise").get<std::string>());
  return slice(premise, 0, std::max<int64_t>(0, count_code_points(premise) - 1)) +
         (question == "cause" ? " because" : " therefore");
}

Target copa_target(const OrderedJson& document) {
  return {std::nullopt, copa_choices(document)[document.at("label") == 0 ? 0 : 1]};
}

// WiC: the word is sentence1[start1:end1], in code points, and not the field "word".
std::string wic_prompt(const OrderedJson& document) {
  const auto sentence = document.at("sentence1").get<std::string>();
  return "Sentence 1: " + sentence +
         "\nSentence 2: " + document.at("sentence2").get<std::string>() +
         "\nQuestion: Is the word '" + slice(sentence, document.at("start1"), document.at("end1")) +
         "' used in the same way in the two sentences above?\nAnswer:";
}

// The harness's general_detokenize().
std::string detokenize(std::string text) {
  const std::pair<const char*, const char*> pairs[] = {
      {" n't", "n't"}, {" )", ")"}, {"( ", "("}, {"\" ", "\""}, {" \"", "\""}};
  for (const auto& [from, to] : pairs) {
    text = replace_all(text, from, to);
  }
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool drops = text[i] == ' ' && i + 1 < text.size() &&
                       std::string_view("'.,").find(text[i + 1]) != std::string_view::npos;
    if (drops) {
      ++i;  // as in Python's re.sub(), the punctuation mark is part of this match
    }
    result += text[i];
  }
  return result;
}

std::string wsc_prompt(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  const auto noun = document.at("span1_text").get<std::string>();
  const auto pronoun = document.at("span2_text").get<std::string>();
  const std::vector<std::string> words = split_words(text);
  const auto count = std::clamp<int64_t>(document.at("span2_index").get<int64_t>(), 0,
                                         static_cast<int64_t>(words.size()));
  const std::string before =
      fmt::format("{}", fmt::join(words.begin(), words.begin() + count, " "));
  const std::string after = slice(text, count_code_points(before) + count_code_points(pronoun) + 1);
  return "Passage: " + detokenize(before + " *" + pronoun + "*" + after) +
         "\nQuestion: In the passage above, does the pronoun \"*" + pronoun + "*\" refer to \"*" +
         noun + "*\"?\nAnswer:";
}

// ReCoRD: the prompt is the passage followed by the highlights as a list. A choice is the query
// with an entity in place of "@placeholder".
std::string record_prompt(const OrderedJson& document) {
  std::string rest = strip(document.at("passage").get<std::string>());
  const std::string mark = "\n@highlight\n";
  size_t end = rest.find(mark);
  std::string prompt = rest.substr(0, end) + "\n\n";
  while (end != std::string::npos) {
    rest.erase(0, end + mark.size());
    end = rest.find(mark);
    prompt += "  - " + rest.substr(0, end) + ".\n";
  }
  return prompt;
}

std::string filled_query(const OrderedJson& document, const std::string& entity) {
  return "  - " + replace_all(document.at("query").get<std::string>(), "@placeholder", entity);
}

void process_record(OrderedJson& fields) {
  for (const char* key : {"entities", "answers"}) {
    auto texts = fields.at(key).get<Texts>();
    std::ranges::sort(texts);
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    fields[key] = texts;
  }
}

Texts record_choices(const OrderedJson& document) {
  Texts choices;
  for (const auto& entity : document.at("entities")) {
    choices.push_back(filled_query(document, entity.get<std::string>()));
  }
  return choices;
}

Target record_answer(const OrderedJson& document) {
  return {std::nullopt, document.at("answers").at(0).get<std::string>()};
}

Target record_target(const OrderedJson& document) {
  return {std::nullopt, filled_query(document, record_answer(document).text)};
}

template <typename Entry>
const Entry& named(const std::map<std::string, Entry>& table, const std::string& name) {
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

// Returns `convert()`; a value that has no text or JSON is a UserError.
template <typename Convert>
auto PromptTemplate::convert_value(const Convert& convert) const {
  try {
    return convert();
  } catch (const jinja::Fault& fault) {
    throw UserError("'{}': {}", printable(template_.source()), fault.message);
  }
}

std::string PromptTemplate::operator()(const OrderedJson& document) const {
  const jinja::Value found = evaluate(document);
  return convert_value([&] { return jinja::to_text(found).utf8(); });
}

OrderedJson PromptTemplate::value(const OrderedJson& document) const {
  const jinja::Value found = evaluate(document);
  if (found.text() != nullptr) {
    return found.text()->utf8();
  }
  const std::string json = convert_value([&] { return jinja::to_json(found, {}).utf8(); });
  return parse_ordered_json(json, template_.source());
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
  return named(readers, name);
}

const TaskFunctions& find_task_functions(const std::string& name) {
  static const std::map<std::string, TaskFunctions> functions = {
      {"copa", {copa_prompt, copa_choices, copa_target}},
      {"hellaswag", {.process = process_hellaswag}},
      {"lambada", {.prompt = lambada_prompt, .target = lambada_target}},
      {"logiqa", {.target = logiqa_target}},
      {"record", {record_prompt, record_choices, record_target, process_record}},
      {"record_answer", {.target = record_answer}},
      {"wic", {.prompt = wic_prompt}},
      {"winogrande", {.choices = winogrande_choices, .target = winogrande_target}},
      {"wsc", {.prompt = wsc_prompt}}};
  return named(functions, name);
}

std::function<std::string(const std::string&, const OrderedJson&)> extraction(const Json& setting) {
  using Extract = std::string (*)(const std::string&, const OrderedJson&);
  static const std::map<std::string, Extract> extracts = {{"brackets", first_brackets},
                                                          {"number", first_number},
                                                          {"option", first_option},
                                                          {"sorted_words", sorted_words}};
  if (setting.is_string()) {
    return named(extracts, setting.get<std::string>());
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
