#pragma once
// Chat templates and prompts of tasks in the jinja2 language, as rendered by transformers: an
// immutable sandbox with loop controls, raise_exception(), strftime_now(), its own tojson and
// {% generation %}. Output equals jinja2's (tests/interop/jinja_parity.py); unsupported features
// are refused: imports, HTML escaping, mutation of lists and dicts, and others.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/jinja/value.h"

namespace moe::jinja {

// Error of a template that is invalid or uses an unsupported feature.
class Unsupported : public UserError {
 public:
  using UserError::UserError;
};

// Consecutive bytes with one Char::source, beginning at the end of the previous run.
struct Run {
  size_t end = 0;
  int32_t source = 0;
  bool is_generated = false;
};

struct Rendered {
  std::string text;
  std::vector<Run> runs;  // ascending, to the end of the text
};

struct RenderSettings {
  // Returns strftime_now(FORMAT). If unset, a template that calls it is refused.
  std::function<std::string(const std::string& format)> format_date = {};
  int64_t max_steps = 10'000'000;  // nodes evaluated
};

// kChat: environment of transformers, with trim_blocks and lstrip_blocks. kTask: environment of
// lm-evaluation-harness, with StrictUndefined and keep_trailing_newline.
enum class Dialect { kChat, kTask };

class Template {
 public:
  // Parses the template. Throws Unsupported that begins with `name`, line and column.
  Template(std::string_view source, std::string name, Dialect dialect = Dialect::kChat);

  // Renders with the variables of `context`. Strings of `context` keep their source; text of the
  // template has source 0. Throws UserError for raise_exception() and where Python raises an
  // exception, and Unsupported for unsupported features.
  Rendered render(const Dict& context, const RenderSettings& settings = {}) const;
  // Returns the text, or the value if the template is a single {{ expression }} and `as_text` is
  // false.
  Value evaluate(const Dict& context, const RenderSettings& settings = {},
                 bool as_text = false) const;

  const std::string& source() const;  // with \n line ends

  // Returns true if the template reads `name`, or for "generation" if it has {% generation %}.
  bool mentions(std::string_view name) const;

 private:
  std::shared_ptr<const struct Syntax> syntax_;
  std::string name_;
  Dialect dialect_;
};

}  // namespace moe::jinja
