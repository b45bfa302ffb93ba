#pragma once
// Prompt templates such as "Question: {{goal}}\nAnswer:", and the functions that task files
// (task.h) name. A template is text with placeholders, called holes, in the subset of Jinja that
// the harness's own tasks need: {{field}}, {{a.b}}, {{a['b']}}, {{list[0]}}, each optionally
// followed by .strip(), .lstrip(), .rstrip(), .lower(), .capitalize() or .index(field).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"

namespace moe::eval {

class PromptTemplate {
 public:
  // Throws UserError if a hole is invalid or .index( is nested deeper than 8 levels.
  explicit PromptTemplate(const std::string& text);

  // Returns the text with every hole replaced by its value: numbers in decimal, booleans and null
  // as True, False and None. Throws UserError if the document lacks a field or the value is a list
  // or an object.
  std::string operator()(const OrderedJson& document) const;
  // Returns the value of the hole, of any type, if the template is a single hole; else the text.
  OrderedJson value(const OrderedJson& document) const;

 private:
  struct Step {
    enum class Kind { kKey, kIndex, kCall, kFind } kind = Kind::kKey;
    std::string name;  // of a key or a method
    size_t index = 0;
    std::vector<Step> inner;  // the argument of .index(..)
  };
  struct Part {
    std::string text;         // before the hole
    std::string hole;         // the hole's source, for messages
    std::vector<Step> steps;  // of the hole; empty: no hole after the text
  };
  class Parser;
  static OrderedJson follow(const std::vector<Step>& steps, const OrderedJson& document,
                            const std::string& hole);
  static const OrderedJson& member(const Step& step, const OrderedJson& value,
                                   const std::string& hole);

  std::vector<Part> parts_;
};

// The harness's doc_to_target: the index of a choice, or a text.
struct Target {
  std::optional<int64_t> index;
  std::string text;
};

// The following functions look up a reader or function by the name in a task file. An unknown name
// fails a MOE_CHECK, because only the task files in known/ can name functions.

// Returns a reader of documents.h ("arc", "piqa", ..), or for "fields" the reader of files with the
// fields of `schema` (read_exported()).
DocumentReader find_document_reader(const std::string& name, const Schema& schema);

// The functions of a task, of which some may be null.
struct TaskFunctions {
  std::string (*prompt)(const OrderedJson&) = nullptr;
  std::vector<std::string> (*choices)(const OrderedJson&) = nullptr;
  Target (*target)(const OrderedJson&) = nullptr;
  void (*process)(OrderedJson&) = nullptr;
};
const TaskFunctions& find_task_functions(const std::string& name);

// Returns the filter of generated answers for a value of the key "extract": "option", "number",
// "brackets", "sorted_words", {"words": [..]}, or {"phrases": [["value", "phrase", ..], ..]}
// (filters.h).
std::function<std::string(const std::string&, const OrderedJson&)> extraction(const Json& setting);

}  // namespace moe::eval
