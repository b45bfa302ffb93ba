// libFuzzer target: parts of a task file. If the first byte is even, the rest is TOML; parsing must
// not overflow the stack. If it is odd, a template up to the first zero byte, then a document as
// JSON.

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/eval/tasks/prompt_template.h"
#include "tests/fuzz/fuzz.h"

namespace {

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
    if (data[0] % 2 == 0) {
      moe::parse_toml(text, "task.toml").dump(-1, ' ', false, moe::Json::error_handler_t::replace);
    } else {
      fill_template(text);
    }
  } catch (const moe::UserError&) {
  }
  return 0;
}
