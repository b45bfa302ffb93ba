// Renders templates for tests/interop/jinja_parity.py: reads lines of JSON with "template" and
// "context", and prints for each a line with "text", "refused" (by the engine) or "error".

#include <fmt/format.h>

#include <iostream>

#include "core/jinja/template.h"

int main() {
  using namespace moe;
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson answer;
    try {
      const OrderedJson record = OrderedJson::parse(line);
      const jinja::Template made(record["template"].get<std::string>(), "template");
      const jinja::RenderSettings settings = {
          [](const std::string& format) { return "<" + format + ">"; }};
      const jinja::Value context = jinja::make_value(record["context"], 1);
      answer["text"] = made.render(*context.dict(), settings).text;
    } catch (const jinja::Unsupported& error) {
      answer["refused"] = error.what();
    } catch (const UserError& error) {
      answer["error"] = error.what();
    }
    fmt::print("{}\n", answer.dump());
  }
}
