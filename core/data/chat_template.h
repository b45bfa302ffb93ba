#pragma once
// Which chat form (chat_forms.h) a model folder's own chat template has: chat_template.jinja, or
// "chat_template" of tokenizer_config.json, a text or a list of {"name", "template"} of which
// "default" counts. The marks in it decide. The template itself is not run, so what it would add of
// its own (a date, a default system text) is missing.

#include <filesystem>
#include <string>

namespace moe::data {

// The name of the form; UserError where the folder has no chat template or one of another form.
std::string chat_form_of(const std::filesystem::path& folder);

// The same of a template's text; empty where no form fits.
std::string chat_form_by_marks(const std::string& chat_template);

// `word` of --template, or where it is "auto" the form of the folder.
std::string named_template(const std::string& word, const std::filesystem::path& folder);

}  // namespace moe::data
