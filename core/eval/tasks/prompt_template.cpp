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

std::string as_text(const OrderedJson& value, const std::string& hole) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "True" : "False";
  }
  if (value.is_number()) {
    return value.dump();
  }
  if (value.is_null()) {
    return "None";
  }
  throw UserError("{{{{{}}}}} is no text but {}; name one entry of it", hole,
                  value.is_array() ? "a list" : "an object");
}

using TextFunction = std::string (*)(const std::string&);

// Returns the equivalent of Python's string method `name`; null if templates do not support it.
TextFunction find_method(const std::string& name) {
  static const std::map<std::string, TextFunction> methods = {
      {"strip", [](const std::string& text) { return strip(text); }},
      {"lstrip", [](const std::string& text) { return std::string(left_strip(text)); }},
      {"rstrip", [](const std::string& text) { return std::string(right_strip(text)); }},
      {"lower", [](const std::string& text) { return lower(text); }},
      {"capitalize", [](const std::string& text) { return capitalize(text); }}};
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

// Returns the index of `element` in the list `value`.
OrderedJson find_index(const OrderedJson& element, const OrderedJson& value,
                       const std::string& hole) {
  const auto found = std::find(value.begin(), value.end(), element);
  USER_ERROR_IF(!value.is_array() || found == value.end(), "{{{{{}}}}}: {} is not in {}", hole,
                printable(element.dump()), printable(value.dump()));
  return static_cast<int64_t>(found - value.begin());
}

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

// Parses a hole: a name, then any number of .name, [0], ['name'] or .function().
class PromptTemplate::Parser {
 public:
  // Maximum nesting of .index(..).
  static constexpr int kMaxDepth = 8;

  explicit Parser(const std::string& hole) : hole_(hole) {}

  std::vector<Step> parse() {
    std::vector<Step> steps = parse_steps();
    skip_space();
    require(at_ == hole_.size());
    return steps;
  }

 private:
  void require(bool holds) const {
    USER_ERROR_IF(!holds,
                  "{{{{{}}}}} is not understood; a hole is a field as in {{{{a.b}}}}, "
                  "{{{{a['b']}}}} or {{{{a[0]}}}}, and then .strip(), .lstrip(), .rstrip(), "
                  ".lower(), .capitalize() or .index(field)",
                  printable(hole_));
  }
  char peek() const { return at_ < hole_.size() ? hole_[at_] : '\0'; }
  void skip_space() {
    while (peek() == ' ') {
      ++at_;
    }
  }
  std::string parse_name() {
    const size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '_') {
      ++at_;
    }
    require(at_ > begin);
    return hole_.substr(begin, at_ - begin);
  }
  std::vector<Step> parse_steps() {
    skip_space();
    std::vector<Step> steps = {{Step::Kind::kKey, parse_name(), 0, {}}};
    while (peek() == '.' || peek() == '[') {
      const bool dotted = peek() == '.';
      ++at_;
      steps.push_back(dotted ? parse_dotted() : parse_bracket());
    }
    return steps;
  }
  Step parse_dotted() {
    Step step{Step::Kind::kKey, parse_name(), 0, {}};
    if (peek() != '(') {
      return step;
    }
    ++at_;
    if (step.name == "index") {
      USER_ERROR_IF(++depth_ > kMaxDepth,
                    "{{{{{}}}}}: more than {} .index( inside each other; write it in fewer",
                    printable(hole_), kMaxDepth);
      step.kind = Step::Kind::kFind;
      step.inner = parse_steps();
      skip_space();
      --depth_;
    } else {
      step.kind = Step::Kind::kCall;
      require(find_method(step.name) != nullptr);
    }
    require(peek() == ')');
    ++at_;
    return step;
  }
  Step parse_bracket() {
    Step step;
    const char quote = peek();
    if (quote == '\'' || quote == '"') {
      const size_t end = hole_.find(quote, at_ + 1);
      require(end != std::string::npos);
      step.name = hole_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else {
      step.kind = Step::Kind::kIndex;
      const std::string digits = parse_name();
      require(digits.size() <= 6 && digits.find_first_not_of("0123456789") == std::string::npos);
      step.index = std::stoul(digits);
    }
    require(peek() == ']');
    ++at_;
    return step;
  }

  const std::string& hole_;
  size_t at_ = 0;
  int depth_ = 0;  // number of open .index( calls
};

PromptTemplate::PromptTemplate(const std::string& text) {
  size_t begin = 0;
  for (size_t open = text.find("{{"); open != std::string::npos; open = text.find("{{", begin)) {
    const size_t close = text.find("}}", open);
    USER_ERROR_IF(close == std::string::npos, "'{}': {{{{ without }}}} after it", printable(text));
    const std::string hole = strip(text.substr(open + 2, close - open - 2));
    parts_.push_back({text.substr(begin, open - begin), hole, Parser(hole).parse()});
    begin = close + 2;
  }
  if (begin < text.size() || parts_.empty()) {
    parts_.push_back({text.substr(begin), "", {}});
  }
}

const OrderedJson& PromptTemplate::member(const Step& step, const OrderedJson& value,
                                          const std::string& hole) {
  if (step.kind == Step::Kind::kIndex) {
    USER_ERROR_IF(!value.is_array() || step.index >= value.size(),
                  "{{{{{}}}}}: there is no entry {} ({})", hole, step.index,
                  value.is_array() ? fmt::format("{} are there", value.size())
                                   : std::string("this is no list"));
    return value[step.index];
  }
  if (!value.is_object() || !value.contains(step.name)) {
    std::vector<std::string> known;
    for (const auto& [key, unused] : value.items()) {
      known.push_back(key);
    }
    throw UserError("{{{{{}}}}}: the document has no '{}'; it has {}", hole, step.name,
                    value.is_object() ? printable(fmt::format("{}", fmt::join(known, ", ")))
                                      : std::string("no fields there"));
  }
  return value[step.name];
}

OrderedJson PromptTemplate::follow(const std::vector<Step>& steps, const OrderedJson& document,
                                   const std::string& hole) {
  const OrderedJson* value = &document;
  OrderedJson result;  // of the last method call
  for (const auto& step : steps) {
    if (step.kind == Step::Kind::kKey || step.kind == Step::Kind::kIndex) {
      value = &member(step, *value, hole);
      continue;
    }
    result = step.kind == Step::Kind::kCall
                 ? OrderedJson(find_method(step.name)(as_text(*value, hole)))
                 : find_index(follow(step.inner, document, hole), *value, hole);
    value = &result;
  }
  return *value;
}

std::string PromptTemplate::operator()(const OrderedJson& document) const {
  std::string text;
  for (const auto& part : parts_) {
    text += part.text;
    if (!part.steps.empty()) {
      text += as_text(follow(part.steps, document, part.hole), part.hole);
    }
  }
  return text;
}

OrderedJson PromptTemplate::value(const OrderedJson& document) const {
  if (parts_.size() == 1 && parts_[0].text.empty() && !parts_[0].steps.empty()) {
    return follow(parts_[0].steps, document, parts_[0].hole);
  }
  return (*this)(document);
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
