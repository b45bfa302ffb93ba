// A folder's own chat template, told by its marks.

#include "core/base/json.h"
#include "core/data/templates.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::data;
using moe::test::contains_text;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;

TEST_CASE("marks tell the form", "[data]") {
  const std::vector<std::pair<std::string, std::string>> known = {
      {"{{ '<|im_start|>' + role }}", "chatml"},
      {"'<|start_header_id|>' + role + '<|end_header_id|>'", "llama3"},
      {"'[INST] ' + '<<SYS>>' + content + ' [/INST]'", "llama2"},
      {"' [INST] ' + system_message + ' [/INST]'", "mistral"},
      {"bos_token '[INST] ' + content + ' [/INST]'", "mistral-v0"},
      {"\"[INST] \" + content + \"[/INST]\"", "mistral-v3"},
      {"\"[INST]\" + content + \"[/INST]\"", "mistral-tekken"},
      {"'[SYSTEM_PROMPT]' '[INST]' + content", "mistral-v7"},
      {"'<|user|>\\n' + content + eos_token", "zephyr"},
      {"'<|user|>\\n' + content + '<|end|>' eos_token", ""},
      {"{{ messages }}", ""},
      {"", ""}};
  const TempDir dir;
  for (const auto& [text, form] : known) {
    CAPTURE(text);
    write_file(dir / "chat_template.jinja", text);
    if (form.empty()) {
      CHECK_FALSE(user_error_of([&] { named_template("auto", dir.path()); }).empty());
    } else {
      CHECK(named_template("auto", dir.path()) == form);
    }
  }
}

TEST_CASE("a folder has its chat template in one of two files", "[data]") {
  const TempDir dir;
  const auto config = [&](const Json& chat_template) {
    write_file(dir / "tokenizer_config.json", Json{{"chat_template", chat_template}}.dump());
  };
  const std::string chatml = "<|im_start|>", llama3 = "<|start_header_id|>";
  CHECK_THAT(
      user_error_of([&] { named_template("auto", dir.path()); }),
      contains_text("has no chat template") && contains_text("--template: llama3, chatml, zephyr"));
  config(chatml);
  CHECK(named_template("auto", dir.path()) == "chatml");
  config({{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", llama3}}});
  CHECK(named_template("auto", dir.path()) == "llama3");
  config({{{"name", "rag"}, {"template", llama3}}, 7, {{"name", 1}}});
  CHECK_THAT(user_error_of([&] { named_template("auto", dir.path()); }),
             contains_text("has no chat template"));
  config("{{ a date }}");
  CHECK_THAT(
      user_error_of([&] { named_template("auto", dir.path()); }),
      contains_text("tokenizer_config.json: the chat template is of no form that moe knows"));
  write_file(dir / "chat_template.jinja", chatml);
  CHECK(named_template("auto", dir.path()) == "chatml");
  CHECK(named_template("paper", dir.path()) == "paper");
}
