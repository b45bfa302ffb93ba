#include "core/eval/tasks/declare.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace moe::eval {

const char* to_string(OutputType type) {
  return type == OutputType::kMultipleChoice  ? "multiple_choice"
         : type == OutputType::kLogLikelihood ? "loglikelihood"
                                              : "generate_until";
}

Compat parse_compat(const std::string& text) {
  if (text == "current" || text == "0.4.1") {
    return text == "current" ? Compat::kCurrent : Compat::k041;
  }
  throw UserError("--compat '{}' is unknown; known: current, 0.4.1", text);
}

const char* to_string(Compat compat) { return compat == Compat::k041 ? "0.4.1" : "current"; }

std::function<Texts(const OrderedJson&)> list(const std::string& hole) {
  return [hole, entries = PromptTemplate(hole)](const OrderedJson& document) {
    const OrderedJson value = entries.value(document);
    Texts texts;
    for (const auto& entry : value) {
      if (value.is_array() && entry.is_string()) {
        texts.push_back(entry.get<std::string>());
      }
    }
    if (!value.is_array() || texts.size() != value.size()) {
      throw UserError("{} is no list of strings: {}", hole, printable(value.dump()));
    }
    return texts;
  };
}

std::function<Target(const OrderedJson&)> target(const std::string& text) {
  return [answer = PromptTemplate(text)](const OrderedJson& document) -> Target {
    const OrderedJson value = answer.value(document);
    if (value.is_number_integer()) {
      return {value.get<int64_t>(), ""};
    }
    if (value.is_boolean()) {
      return {value.get<bool>() ? 1 : 0, ""};
    }
    std::string words = value.is_string() ? value.get<std::string>() : answer(document);
    const bool is_index = !words.empty() && words.size() < 7 &&
                          words.find_first_not_of("0123456789") == std::string::npos;
    if (is_index) {
      return {std::stoll(words), ""};
    }
    return {std::nullopt, std::move(words)};
  };
}

}  // namespace moe::eval
