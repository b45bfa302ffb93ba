#pragma once
// Prompt templates such as "Question: {{goal}}\nAnswer:", and the readers and filters that task
// files (task.h) name. Templates are jinja2 templates (core/jinja) with the settings of the
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

  // Returns the text for a document. If the template is the name of a field, returns the field's
  // value, as in the harness. Throws UserError if the document lacks a field that is used.
  std::string operator()(const OrderedJson& document) const;
  // Returns the value, of any type, if the template is one expression in {{ }}; else the text.
  OrderedJson value(const OrderedJson& document) const;

 private:
  jinja::Value evaluate(const OrderedJson& document) const;
  std::string convert(const jinja::Value& value, bool to_json) const;

  jinja::Template template_;
};

// The harness's doc_to_target: the index of a choice, or a text.
struct Target {
  std::optional<int64_t> index;
  std::string text;
};

// The following functions return a reader or filter by its name in a task file. An unknown name
// fails a MOE_CHECK, because only the task files in known/ may contain such names.

// Returns a reader of documents.h ("arc", "piqa", ..), or for "fields" the reader of files with the
// fields of `schema` (read_exported()).
DocumentReader find_document_reader(const std::string& name, const Schema& schema);

// Returns the filter of generated answers for a value of the key "extract": "option", "number",
// "brackets", "sorted_words", {"words": [..]}, or {"phrases": [["value", "phrase", ..], ..]}
// (filters.h).
std::function<std::string(const std::string&, const OrderedJson&)> extraction(const Json& setting);

}  // namespace moe::eval
