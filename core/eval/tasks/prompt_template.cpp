#include "core/eval/tasks/prompt_template.h"

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"

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

std::string call(const std::string& function, const std::string& text) {
  if (function == "strip") {
    return strip(text);
  }
  if (function == "lstrip") {
    return std::string(left_strip(text));
  }
  if (function == "rstrip") {
    return std::string(right_strip(text));
  }
  return function == "lower" ? lower(text) : capitalize(text);
}

// The index of `wanted` in the list `value`.
OrderedJson find(const OrderedJson& wanted, const OrderedJson& value, const std::string& hole) {
  const auto found = std::find(value.begin(), value.end(), wanted);
  if (!value.is_array() || found == value.end()) {
    throw UserError("{{{{{}}}}}: {} is not in {}", hole, printable(wanted.dump()),
                    printable(value.dump()));
  }
  return static_cast<int64_t>(found - value.begin());
}

}  // namespace

// One hole: a name, then .name, [0], ['name'] or .function() as often as wanted.
class PromptTemplate::Parser {
 public:
  // What is inside an .index(..) is parsed, filled in and destroyed by recursion.
  static constexpr int kMaxDepth = 8;

  explicit Parser(const std::string& hole) : hole_(hole) {}

  std::vector<Step> parse() {
    std::vector<Step> steps = parse_steps();
    skip_space();
    if (at_ != hole_.size()) {
      fail();
    }
    return steps;
  }

 private:
  [[noreturn]] void fail() const {
    throw UserError(
        "{{{{{}}}}} is not understood; a hole is a field as in {{{{a.b}}}}, {{{{a['b']}}}} or "
        "{{{{a[0]}}}}, and then .strip(), .lstrip(), .rstrip(), .lower(), .capitalize() or "
        ".index(field)",
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
    if (at_ == begin) {
      fail();
    }
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
      if (++depth_ > kMaxDepth) {
        throw UserError("{{{{{}}}}}: more than {} .index( inside each other; write it in fewer",
                        printable(hole_), kMaxDepth);
      }
      step.kind = Step::Kind::kFind;
      step.inner = parse_steps();
      skip_space();
      --depth_;
    } else {
      const std::vector<std::string> known = {"strip", "lstrip", "rstrip", "lower", "capitalize"};
      step.kind = Step::Kind::kCall;
      if (std::find(known.begin(), known.end(), step.name) == known.end()) {
        fail();
      }
    }
    if (peek() != ')') {
      fail();
    }
    ++at_;
    return step;
  }
  Step parse_bracket() {
    Step step;
    const char quote = peek();
    if (quote == '\'' || quote == '"') {
      const size_t end = hole_.find(quote, at_ + 1);
      if (end == std::string::npos) {
        fail();
      }
      step.name = hole_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else {
      step.kind = Step::Kind::kIndex;
      const std::string digits = parse_name();
      if (digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) {
        fail();
      }
      step.index = std::stoul(digits);
    }
    if (peek() != ']') {
      fail();
    }
    ++at_;
    return step;
  }

  const std::string& hole_;
  size_t at_ = 0;
  int depth_ = 0;  // open .index( around this place
};

PromptTemplate::PromptTemplate(const std::string& text) {
  size_t begin = 0;
  for (size_t open = text.find("{{"); open != std::string::npos; open = text.find("{{", begin)) {
    const size_t close = text.find("}}", open);
    if (close == std::string::npos) {
      throw UserError("'{}': {{{{ without }}}} after it", printable(text));
    }
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
    if (!value.is_array() || step.index >= value.size()) {
      throw UserError("{{{{{}}}}}: there is no entry {} ({})", hole, step.index,
                      value.is_array() ? fmt::format("{} are there", value.size())
                                       : std::string("this is no list"));
    }
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
  OrderedJson result;  // of the last function
  for (const auto& step : steps) {
    if (step.kind == Step::Kind::kKey || step.kind == Step::Kind::kIndex) {
      value = &member(step, *value, hole);
      continue;
    }
    result = step.kind == Step::Kind::kCall
                 ? OrderedJson(call(step.name, as_text(*value, hole)))
                 : find(follow(step.inner, document, hole), *value, hole);
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

}  // namespace moe::eval
