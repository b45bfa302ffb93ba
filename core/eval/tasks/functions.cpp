#include "core/eval/tasks/functions.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "core/eval/metrics/filters.h"

namespace moe::eval {
namespace {

using Texts = std::vector<std::string>;

// LogiQA's label is a letter.
Target logiqa_target(const OrderedJson& document) {
  const std::string label = strip(document.at("label").get<std::string>());
  if (label.size() != 1 || label[0] < 'a' || label[0] > 'd') {
    throw UserError("'label' must be a letter from a to d, not '{}'", label);
  }
  return {label[0] - 'a', ""};
}

// The sentence up to the blank with an option in it: the context. What follows is scored.
Texts winogrande_choices(const OrderedJson& document) {
  const auto sentence = document.at("sentence").get<std::string>();
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) {
    throw UserError("'sentence' has no blank, an underscore");
  }
  const std::string begin = sentence.substr(0, blank);
  return {begin + document.at("option1").get<std::string>(),
          begin + document.at("option2").get<std::string>()};
}

Target winogrande_target(const OrderedJson& document) {
  const auto answer = document.at("answer").get<std::string>();
  if (answer != "1" && answer != "2") {
    throw UserError("'answer' must be 1 or 2, not '{}'; a split without answers cannot be scored",
                    answer);
  }
  const auto sentence = document.at("sentence").get<std::string>();
  return {answer[0] - '1', strip(sentence.substr(sentence.find('_') + 1))};
}

// The last word, as Python's text.split(' ') cuts it off.
std::string lambada_prompt(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  const size_t space = text.rfind(' ');
  return space == std::string::npos ? "" : text.substr(0, space);
}

Target lambada_target(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  return {std::nullopt, " " + text.substr(text.rfind(' ') + 1)};
}

// COPA: the sentence without its full stop, a connector; the continuation has two spaces.
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
  if (question != "cause" && question != "effect") {
    throw UserError("'question' must be cause or effect, not '{}'", question);
  }
  const std::string premise = strip(document.at("premise").get<std::string>());
  return slice(premise, 0, std::max<int64_t>(0, count_code_points(premise) - 1)) +
         (question == "cause" ? " because" : " therefore");
}

Target copa_target(const OrderedJson& document) {
  return {std::nullopt, copa_choices(document)[document.at("label") == 0 ? 0 : 1]};
}

// WiC: the word is cut out of its sentence by its position, in characters.
std::string wic_prompt(const OrderedJson& document) {
  const auto sentence = document.at("sentence1").get<std::string>();
  return "Sentence 1: " + sentence +
         "\nSentence 2: " + document.at("sentence2").get<std::string>() +
         "\nQuestion: Is the word '" + slice(sentence, document.at("start1"), document.at("end1")) +
         "' used in the same way in the two sentences above?\nAnswer:";
}

// The harness's general_detokenize.
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
      ++i;  // the mark itself cannot be dropped in its turn
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

// ReCoRD: the summary's points below the passage, each entity in the query's place; no gold choice.
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
    std::sort(texts.begin(), texts.end());
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

template <typename Function>
Function named(const std::map<std::string, Function>& table, const std::string& name) {
  const auto found = table.find(name);
  MOE_CHECK(found != table.end(), "a task file names '{}'", name);
  return found->second;
}

}  // namespace

DocumentReader reader_named(const std::string& name, const Schema& schema) {
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
      {"quiz", read_quiz},
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

std::function<std::string(const OrderedJson&)> prompt_named(const std::string& name) {
  using Prompt = std::string (*)(const OrderedJson&);
  static const std::map<std::string, Prompt> prompts = {{"copa", copa_prompt},
                                                        {"lambada", lambada_prompt},
                                                        {"record", record_prompt},
                                                        {"wic", wic_prompt},
                                                        {"wsc", wsc_prompt}};
  return named(prompts, name);
}

std::function<std::vector<std::string>(const OrderedJson&)> choices_named(const std::string& name) {
  using Choices = Texts (*)(const OrderedJson&);
  static const std::map<std::string, Choices> choices = {
      {"copa", copa_choices}, {"record", record_choices}, {"winogrande", winogrande_choices}};
  return named(choices, name);
}

std::function<Target(const OrderedJson&)> target_named(const std::string& name) {
  using Function = Target (*)(const OrderedJson&);
  static const std::map<std::string, Function> targets = {{"copa", copa_target},
                                                          {"lambada", lambada_target},
                                                          {"logiqa", logiqa_target},
                                                          {"record", record_target},
                                                          {"record_answer", record_answer},
                                                          {"winogrande", winogrande_target}};
  return named(targets, name);
}

std::function<void(OrderedJson&)> process_named(const std::string& name) {
  using Process = void (*)(OrderedJson&);
  static const std::map<std::string, Process> processes = {{"hellaswag", process_hellaswag},
                                                           {"record", process_record}};
  return named(processes, name);
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

Metric metric_named(const std::string& name) {
  static const std::map<std::string, Metric> metrics = {{"macro_f1", macro_f1()},
                                                        {"mc2", answer_mass()},
                                                        {"record_em", entity_match()},
                                                        {"record_f1", entity_f1()}};
  const auto found = metrics.find(name);
  return found == metrics.end() ? choice_metric(name) : found->second;
}

}  // namespace moe::eval
