#pragma once
// Chat templates and prompts of tasks, in the language of jinja2 as transformers runs it: an
// immutable sandbox with loop controls, raise_exception(), strftime_now(), its own tojson and
// {% generation %}. What is rendered equals jinja2's (tests/interop/jinja_parity.py), the rest is
// refused. There are no imports, no HTML escaping and no changes of lists and dicts.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/jinja/value.h"

namespace moe::jinja {

// A template that is invalid or uses what the engine lacks.
class Unsupported : public UserError {
 public:
  using UserError::UserError;
};

// Consecutive bytes of one source, up to `end`.
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
  // strftime_now(FORMAT); without it a template that calls it is refused.
  std::function<std::string(const std::string& format)> format_date = {};
  int64_t max_steps = 10'000'000;  // nodes evaluated
};

// kChat: transformers' environment, with trim_blocks and lstrip_blocks. kTask: that of
// lm-evaluation-harness, with StrictUndefined and keep_trailing_newline.
enum class Dialect { kChat, kTask };

class Template {
 public:
  // `name` opens errors, such as a file's. Throws Unsupported with line and column.
  Template(std::string_view source, std::string name, Dialect dialect = Dialect::kChat);

  // Renders with the names of `context`. Strings of `context` keep their source, the template's
  // own have source 0. Throws UserError for raise_exception() and for all else that raises an
  // exception in Python, Unsupported for what the engine lacks.
  Rendered render(const Dict& context, const RenderSettings& settings = {}) const;
  // Returns the value of a template that is one expression in {{ }} alone, else, or with `as_text`,
  // its text.
  Value evaluate(const Dict& context, const RenderSettings& settings = {},
                 bool as_text = false) const;

  const std::string& source() const;  // with line feeds alone

  // Returns true if the template uses `name`, or has {% generation %} for "generation".
  bool mentions(std::string_view name) const;

 private:
  std::shared_ptr<const struct Syntax> syntax_;
  std::string name_;
  Dialect dialect_;
};

}  // namespace moe::jinja
