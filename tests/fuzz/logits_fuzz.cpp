// libFuzzer target: reads the input as logits for `moe route` (JSON or CSV). It is refused with a
// UserError that names the file, or gives an object with logits.

#include "core/base/error.h"
#include "core/route/read_logits.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using moe::fuzz::require;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const moe::Json input = moe::route::read_route_input(text, "input");
    require(input.is_object() && input.contains("logits"));
  } catch (const moe::UserError& error) {
    require(std::string_view(error.what()).starts_with("input"));
  }
  return 0;
}
