#pragma once
// The words in which the tables declare tasks.

#include <memory>

#include "core/eval/tasks/prompt_template.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

using Texts = std::vector<std::string>;

// The same choices for every document.
inline auto fixed(Texts choices) {
  return [choices = std::move(choices)](const OrderedJson&) { return choices; };
}

// A template a choice.
inline auto each(const Texts& texts) {
  std::vector<PromptTemplate> templates(texts.begin(), texts.end());
  return [templates = std::move(templates)](const OrderedJson& document) {
    Texts choices;
    for (const auto& choice : templates) {
      choices.push_back(choice(document));
    }
    return choices;
  };
}

// A list of the document: "{{choices.text}}". UserError: it is no list of texts.
std::function<Texts(const OrderedJson&)> list(const std::string& hole);

// doc_to_target: a whole number, or digits, is an index; other text is a choice or the answer.
std::function<Target(const OrderedJson&)> target(const std::string& text);

// The tables.
std::vector<Task> choice_tasks();     // table_choice.cpp
std::vector<Task> superglue_tasks();  // table_superglue.cpp
std::vector<Task> mmlu_tasks();       // table_mmlu.cpp
std::vector<Task> bbh_tasks();        // table_bbh.cpp

}  // namespace moe::eval
