#pragma once
// Prompts as text with holes: "Question: {{goal}}\nAnswer:". The part of Jinja that the harness's
// own tasks need: {{field}}, {{a.b}}, {{a['b']}}, {{list[0]}}, and after it .strip(), .lstrip(),
// .rstrip(), .lower(), .capitalize(), .index(field).

#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

class PromptTemplate {
 public:
  // UserError: a hole that is broken or unknown, or .index( nested deeper than 8 levels.
  explicit PromptTemplate(const std::string& text);

  // The text with every hole filled: numbers in decimal, True, False and None as Python has them.
  // UserError: the document lacks a field, or a hole is a list.
  std::string operator()(const OrderedJson& document) const;
  // The value of a template that is nothing but one hole, else its text.
  OrderedJson value(const OrderedJson& document) const;

 private:
  struct Step {
    enum class Kind { kKey, kIndex, kCall, kFind } kind = Kind::kKey;
    std::string name;  // of the key or the function
    size_t index = 0;
    std::vector<Step> inner;  // what .index(..) looks for
  };
  struct Part {
    std::string text;         // before the hole
    std::string hole;         // as it is written, for messages
    std::vector<Step> steps;  // empty = no hole
  };
  class Parser;
  static OrderedJson follow(const std::vector<Step>& steps, const OrderedJson& document,
                            const std::string& hole);
  static const OrderedJson& member(const Step& step, const OrderedJson& value,
                                   const std::string& hole);

  std::vector<Part> parts_;
};

}  // namespace moe::eval
