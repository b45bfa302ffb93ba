#include "core/data/chat_template.h"

#include <fmt/ranges.h>

#include <string_view>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/data/chat_forms.h"

namespace moe::data {

namespace fs = std::filesystem;

namespace {

constexpr const char *kFile = "chat_template.jinja", *kConfig = "tokenizer_config.json";

// The default of "chat_template"; empty where there is none.
std::string default_of(const Json& config) {
  const auto entry = config.is_object() ? config.find("chat_template") : config.end();
  if (entry == config.end()) {
    return "";
  }
  if (entry->is_string()) {
    return entry->get<std::string>();
  }
  for (const auto& named : *entry) {
    if (named.is_object() && named.value("name", Json()) == "default" &&
        named.value("template", Json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace

std::string chat_form_by_marks(const std::string& chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string::npos;
  };
  if (has("<|im_start|>")) {
    return "chatml";
  }
  if (has("<|start_header_id|>")) {
    return "llama3";
  }
  if (has("[INST]")) {
    if (has("[SYSTEM_PROMPT]")) {
      return "mistral-v7";
    }
    if (has("<<SYS>>")) {
      return "llama2";
    }
    if (has(" [INST]")) {
      return "mistral";
    }
    const bool is_tight = has("\"[INST]\"") || has("'[INST]'");
    return is_tight ? "mistral-tekken" : has(" [/INST]") ? "mistral-v0" : "mistral-v3";
  }
  if (has("<|user|>") && (has("eos_token") || has("</s>") || has("<|endoftext|>")) &&
      !has("<|end|>")) {
    return "zephyr";
  }
  return "";
}

std::string chat_form_of(const fs::path& folder) {
  std::string text;
  fs::path file = folder / kFile;
  if (fs::exists(file)) {
    constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;
    text = read_small_file(file, kMaxTemplateBytes);
  } else if (file = folder / kConfig; fs::exists(file)) {
    text = default_of(read_json(file));
  }
  const std::string remedy =
      fmt::format("name one with --template: {}, llama2", fmt::join(chat_form_names(), ", "));
  if (text.empty()) {
    throw UserError("{}: has no chat template ({} or \"chat_template\" of {}); {}", folder.string(),
                    kFile, kConfig, remedy);
  }
  const std::string form = chat_form_by_marks(text);
  if (form.empty()) {
    throw UserError("{}: the chat template is of no form that moe knows; {}", file.string(),
                    remedy);
  }
  return form;
}

std::string named_template(const std::string& word, const fs::path& folder) {
  return word == "auto" ? chat_form_of(folder) : word;
}

}  // namespace moe::data
