#pragma once
// Prompt templates such as "Question: {{goal}}\nAnswer:", and the functions that task files
// (task.h) name. A template is in the language of jinja2 (core/jinja) in the environment of the
// harness: undefined names are errors, white space is kept.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/jinja/template.h"

namespace moe::eval {

class PromptTemplate {
 public:
  // Throws UserError with line and column if the template is invalid.
  explicit PromptTemplate(const std::string& text);

  // Returns the text for a document. A template that is the name of a field is the field's value,
  // as in the harness. Throws UserError if the document lacks a field that is used.
  std::string operator()(const OrderedJson& document) const;
  // Returns the value, of any type, if the template is one expression in {{ }}; else the text.
  OrderedJson value(const OrderedJson& document) const;

 private:
  jinja::Value evaluate(const OrderedJson& document) const;
  template <typename Convert>
  auto convert_value(const Convert& convert) const;

  jinja::Template template_;
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
