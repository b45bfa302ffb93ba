// libFuzzer target: what a task file of one's own is made of. The first byte chooses. Even: the
// rest is TOML, and what check_toml_depth lets through neither overflows the parser's stack nor the
// printer's. Odd: a template up to the first zero byte, then the JSON of a document that fills it.

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/toml_depth.h"
#include "core/eval/tasks/prompt_template.h"
#include "tests/fuzz/fuzz.h"

namespace {

void read_toml(std::string_view text) {
  moe::check_toml_depth(text, "task.toml");
  try {
    std::ostringstream json;
    json << toml::json_formatter(toml::parse(text));
    moe::parse_json(json.str(), "task.toml");
  } catch (const toml::parse_error&) {
  }
}

void fill_template(std::string_view text) {
  const size_t zero = std::min(text.find('\0'), text.size());
  const moe::eval::PromptTemplate words(std::string(text.substr(0, zero)));
  const moe::Json json = moe::parse_json(text.substr(std::min(zero + 1, text.size())), "document");
  const moe::OrderedJson document(json);
  const std::string filled = words(document);
  const moe::OrderedJson value = words.value(document);
  moe::fuzz::require(!value.is_string() || value.get<std::string>() == filled);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    data[0] % 2 == 0 ? read_toml(text) : fill_template(text);
  } catch (const moe::UserError&) {
  }
  return 0;
}
