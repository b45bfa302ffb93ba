#pragma once
// Which chat form (chat_forms.h) a model folder's own chat template has: chat_template.jinja, or
// "chat_template" of tokenizer_config.json, a text or a list of {"name", "template"} of which
// "default" counts. It is told by the marks in it; the template itself is not run, so what it makes
// up besides (a date, a system text of its own) is not there.

#include <filesystem>
#include <string>

namespace moe::data {

// The name of the form; UserError where the folder has no chat template or one of another form.
std::string chat_form_of(const std::filesystem::path& folder);

// The same of a template's text; empty where it is of no form that is known.
std::string chat_form_by_marks(const std::string& chat_template);

// `word` of --template, "auto" replaced by the folder's.
std::string named_template(const std::string& word, const std::filesystem::path& folder);

}  // namespace moe::data
